#include <cmath>

constexpr long BLOCK = 1024;

// A block as float32: the memory itself, or a buffer that bfloat16 is copied to and from.
inline const float* read(const float* from, float*, long) { return from; }
inline const float* read(const bfloat16* from, float* buffer, long size) {
    for (long e = 0; e < size; e++) buffer[e] = wide(from[e]);
    return buffer;
}
inline float* place(float* to, float*) { return to; }
inline float* place(bfloat16*, float* buffer) { return buffer; }
inline void write(const float*, float*, long) {}
inline void write(const float* from, bfloat16* to, long size) {
    for (long e = 0; e < size; e++) to[e].bits = narrow(from[e]);
}

// The standard normal distribution up to z, (1 + erf(z / sqrt 2)) / 2: a rational function within 1e-7 (that of XLA).
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

// Its density at z, exp(-z^2 / 2) / sqrt(2 pi): 2^n exp(r) with n an integer and |r| <= ln(2) / 2 (Cephes' expf).
inline float density(float z) {
    float t = -0.5f * z * z;
    t = t < -87.0f ? -87.0f : t;
    const float n = (t * 1.44269504f + 12582912.0f) - 12582912.0f;  // rounds to the next integer
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

// A -> Z = tau A / ||A|| in place, gelu(Z) and tau / ||A||
template <class T>
void forward(T* products, float* factor, T* scores, long rows, long tokens, float tau, float smallest, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long row = 0; row < rows; row++) {
        float buffer[BLOCK], other[BLOCK], squares = 0;
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
            float* const z = place(a + start, buffer);
            for (long e = 0; e < size; e++) z[e] = x[e] * scale;
            write(z, a + start, size);
            x = read(a + start, buffer, size);  // the gradient will see Z as it is stored
            T* const out = scores + row * tokens + start;
            float* const s = place(out, other);
            for (long e = 0; e < size; e++) s[e] = x[e] * distribution(x[e]);
            write(s, out, size);
        }
    }
}

// dS -> g - share Z (Z . g) in place, with g = dS gelu'(Z); and gelu(Z)
template <class T>
void backward(T* gradient, const T* normalised, T* scores, long rows, long tokens, float share, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long row = 0; row < rows; row++) {
        float buffer[BLOCK], other[BLOCK], third[BLOCK], along = 0;
        T* const d = gradient + row * tokens;
        const T* const of = normalised + row * tokens;
        for (long start = 0; start < tokens; start += BLOCK) {
            const long size = tokens - start < BLOCK ? tokens - start : BLOCK;
            const float *const z = read(of + start, buffer, size), *const x = read(d + start, other, size);
            T* const out = scores + row * tokens + start;
            float *const g = place(d + start, other), *const s = place(out, third);
#pragma omp simd reduction(+ : along)
            for (long e = 0; e < size; e++) {
                const float cdf = distribution(z[e]);
                s[e] = z[e] * cdf;
                g[e] = x[e] * (cdf + z[e] * density(z[e]));
                along += z[e] * g[e];
            }
            write(g, d + start, size);
            write(s, out, size);
        }
        along *= share;
        for (long start = 0; start < tokens; start += BLOCK) {
            const long size = tokens - start < BLOCK ? tokens - start : BLOCK;
            const float *const z = read(of + start, buffer, size), *const x = read(d + start, other, size);
            float* const g = place(d + start, other);
            for (long e = 0; e < size; e++) g[e] = x[e] - z[e] * along;
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
void backward_float(float* d, const float* z, float* s, long rows, long n, float share, int threads) {
    backward(d, z, s, rows, n, share, threads);
}
void backward_bfloat16(bfloat16* d, const bfloat16* z, bfloat16* s, long rows, long n, float share, int threads) {
    backward(d, z, s, rows, n, share, threads);
}
}
