// Rotate one row of channels. STEP is the distance between the first channels of successive pairs: 2 if pairs are
// interleaved, otherwise 1.
template <int STEP, class T>
inline void rotate_row(const T* __restrict x, T* __restrict out, const float* __restrict cosine,
                       const float* __restrict sine, float sign, long width, long pairs) {
    const long partner_offset = STEP == 2 ? 1 : pairs;
#pragma omp simd
    for (long i = 0; i < pairs; i++) {
        const float a = wide(x[i * STEP]), b = wide(x[i * STEP + partner_offset]);
        const float c = cosine[i * STEP], s = sign * sine[i];
        narrow(a * c - b * s, out[i * STEP]);
        narrow(b * c + a * s, out[i * STEP + partner_offset]);
    }
    for (long e = 2 * pairs; e < width; e++) out[e] = x[e];
}

// xb, xh and xt are the strides of x over batch, heads and time; ob, oh and ot are the strides of out.
template <class T>
void rotate(const T* x, T* out, const float* cosine, const float* sine, long batch, long heads, long time, long width,
            long pairs, long xb, long xh, long xt, long ob, long oh, long ot, int interleaved, float sign,
            int threads) {
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads) if (threads > 1)
    for (long b = 0; b < batch; b++)
        for (long t = 0; t < time; t++)
            for (long h = 0; h < heads; h++) {
                const T* from = x + b * xb + h * xh + t * xt;
                T* to = out + b * ob + h * oh + t * ot;
                const float *c = cosine + t * width, *s = sine + t * pairs;
                if (interleaved) rotate_row<2>(from, to, c, s, sign, width, pairs);
                else rotate_row<1>(from, to, c, s, sign, width, pairs);
            }
}

#define ROTATE(T)                                                                                                    \
    extern "C" void rotate_##T(const T* x, T* out, const float* cosine, const float* sine, long batch, long heads,   \
                               long time, long width, long pairs, long xb, long xh, long xt, long ob, long oh,       \
                               long ot, int interleaved, float sign, int threads) {                                  \
        rotate(x, out, cosine, sine, batch, heads, time, width, pairs, xb, xh, xt, ob, oh, ot, interleaved, sign,    \
               threads);                                                                                             \
    }
ROTATE(float)
ROTATE(bfloat16)
