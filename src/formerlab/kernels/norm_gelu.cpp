#include <cmath>

constexpr long BLOCK = 1024;

// Access a block as float32: float32 memory directly, bfloat16 through a buffer.
inline const float* read(const float* from, float*, long) { return from; }
inline const float* read(const bfloat16* from, float* buffer, long size) {
    for (long e = 0; e < size; e++) buffer[e] = wide(from[e]);
    return buffer;
}
inline float* destination(float* to, float*) { return to; }
inline float* destination(bfloat16*, float* buffer) { return buffer; }
inline void write(const float*, float*, long) {}
inline void write(const float* from, bfloat16* to, long size) {
    for (long e = 0; e < size; e++) to[e].bits = narrow(from[e]);
}

// Standard normal CDF at z, (1 + erf(z / sqrt 2)) / 2, by XLA's rational function with an error below 1e-7.
inline float distribution(float z) {
    const float limit = 3.832506856900711f;
    float x = z * 0.7071067811865476f;
    x = x > limit ? limit : x;
    x = x < -limit ? -limit : x;
    const float u = x * x;
    float p = 0.00022905065861350646f, q = -1.1791602954361697e-7f;
    p = p * u + 0.0034082910107109506f;
    p = p * u + 0.050955695062380861f;
    p = p * u + 0.18520832239976145f;
    p = p * u + 1.128379143519084f;
    q = q * u + 0.000023547966471313185f;
    q = q * u + 0.0010179625278914885f;
    q = q * u + 0.014070470171167667f;
    q = q * u + 0.11098505178285362f;
    q = q * u + 0.49746925110067538f;
    q = q * u + 1.0f;
    return 0.5f + 0.5f * x * p / q;
}

// Standard normal density at z, exp(-z^2 / 2) / sqrt(2 pi), by exp(t) = 2^n exp(r) with |r| <= ln(2) / 2 (Cephes' expf).
inline float density(float z) {
    float t = -0.5f * z * z;
    t = t < -87.0f ? -87.0f : t;
    const float n = (t * 1.44269504f + 12582912.0f) - 12582912.0f;  // rounds to the nearest integer
    const float r = t - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const int32_t bits = (int32_t(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return 0.3989422804014327f * power * (p * r * r + r + 1.0f);
}

// Replace A by Z = tau A / ||A|| in place; write gelu(Z) and tau / ||A||.
template <class T>
void forward(T* products, float* factor, T* scores, long rows, long tokens, float tau, float smallest, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long row = 0; row < rows; row++) {
        float buffer[BLOCK], score_buffer[BLOCK], squares = 0;
        T* const a = products + row * tokens;
        for (long start = 0; start < tokens; start += BLOCK) {
            const long size = tokens - start < BLOCK ? tokens - start : BLOCK;
            const float* const x = read(a + start, buffer, size);
#pragma omp simd reduction(+ : squares)
            for (long e = 0; e < size; e++) squares += x[e] * x[e];
        }
        const float norm = std::sqrt(squares), scale = norm > smallest ? tau / norm : 0.0f;
        factor[row] = scale;
        for (long start = 0; start < tokens; start += BLOCK) {
            const long size = tokens - start < BLOCK ? tokens - start : BLOCK;
            const float* x = read(a + start, buffer, size);
            float* const z = destination(a + start, buffer);
            for (long e = 0; e < size; e++) z[e] = x[e] * scale;
            write(z, a + start, size);
            x = read(a + start, buffer, size);  // the stored, rounded Z, which the gradient uses too
            T* const out = scores + row * tokens + start;
            float* const s = destination(out, score_buffer);
            for (long e = 0; e < size; e++) s[e] = x[e] * distribution(x[e]);
            write(s, out, size);
        }
    }
}

// Replace grad = dS tau / ||A|| by dA = g - Z (Z . g) / tau^2 in place, with g = grad gelu'(Z); write gelu(Z).
template <class T>
void backward(T* gradient, const T* normalised, T* scores, long rows, long tokens, float inverse_squared_tau,
              int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long row = 0; row < rows; row++) {
        float z_buffer[BLOCK], g_buffer[BLOCK], score_buffer[BLOCK], projection = 0;
        T* const d = gradient + row * tokens;
        const T* const source = normalised + row * tokens;
        for (long start = 0; start < tokens; start += BLOCK) {
            const long size = tokens - start < BLOCK ? tokens - start : BLOCK;
            const float* const z = read(source + start, z_buffer, size);
            const float* const grad_scores = read(d + start, g_buffer, size);
            T* const out = scores + row * tokens + start;
            float *const g = destination(d + start, g_buffer), *const s = destination(out, score_buffer);
#pragma omp simd reduction(+ : projection)
            for (long e = 0; e < size; e++) {
                const float cdf = distribution(z[e]);
                s[e] = z[e] * cdf;
                g[e] = grad_scores[e] * (cdf + z[e] * density(z[e]));
                projection += z[e] * g[e];
            }
            write(g, d + start, size);
            write(s, out, size);
        }
        projection *= inverse_squared_tau;
        for (long start = 0; start < tokens; start += BLOCK) {
            const long size = tokens - start < BLOCK ? tokens - start : BLOCK;
            const float* const z = read(source + start, z_buffer, size);
            const float* const grad_scores = read(d + start, g_buffer, size);
            float* const g = destination(d + start, g_buffer);
            for (long e = 0; e < size; e++) g[e] = grad_scores[e] - z[e] * projection;
            write(g, d + start, size);
        }
    }
}

extern "C" {
void forward_float(float* a, float* f, float* s, long rows, long n, float tau, float smallest, int threads) {
    forward(a, f, s, rows, n, tau, smallest, threads);
}
void forward_bfloat16(bfloat16* a, float* f, bfloat16* s, long rows, long n, float tau, float smallest, int threads) {
    forward(a, f, s, rows, n, tau, smallest, threads);
}
void backward_float(float* d, const float* z, float* s, long rows, long n, float factor, int threads) {
    backward(d, z, s, rows, n, factor, threads);
}
void backward_bfloat16(bfloat16* d, const bfloat16* z, bfloat16* s, long rows, long n, float factor, int threads) {
    backward(d, z, s, rows, n, factor, threads);
}
}
