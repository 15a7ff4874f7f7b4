#include <vector>

// Number of elements in a block; the block of the sum stays in the L1 cache while all tensors are added to it.
constexpr long BLOCK = 4096;

inline double wide(double value) { return value; }
inline void narrow(double value, double& out) { out = value; }

// Compute sum += a[0] t[0] + ... + a[3] t[3]; if products is not null, also write the dot products of each t with x.
template <class T, class A>
inline void add_four(const T* const* t, const double* a, const T* x, A* sum, double* products, long size) {
    const T *t0 = t[0], *t1 = t[1], *t2 = t[2], *t3 = t[3];
    const A a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];
    if (!products) {
        for (long e = 0; e < size; e++)
            sum[e] += (a0 * wide(t0[e]) + a1 * wide(t1[e])) + (a2 * wide(t2[e]) + a3 * wide(t3[e]));
        return;
    }
    A p0 = 0, p1 = 0, p2 = 0, p3 = 0;
#pragma omp simd reduction(+ : p0, p1, p2, p3)
    for (long e = 0; e < size; e++) {
        const A v = wide(x[e]), v0 = wide(t0[e]), v1 = wide(t1[e]), v2 = wide(t2[e]), v3 = wide(t3[e]);
        sum[e] += (a0 * v0 + a1 * v1) + (a2 * v2 + a3 * v3);
        p0 += v0 * v; p1 += v1 * v; p2 += v2 * v; p3 += v3 * v;
    }
    products[0] = p0; products[1] = p1; products[2] = p2; products[3] = p3;
}

template <class T, class A>
inline void add_one(const T* t, const A a, const T* x, A* sum, double* product, long size) {
    A p = 0;
#pragma omp simd reduction(+ : p)
    for (long e = 0; e < size; e++) {
        sum[e] += a * wide(t[e]);
        if (product) p += wide(t[e]) * wide(x[e]);
    }
    if (product) *product = p;
}

template <class T, class A>
void sum_blocks(long n, const T* const* tensors, const double* a, const T* addend, const T* x, T* out, double* products,
         long count, int threads) {
    const long blocks = (count + BLOCK - 1) / BLOCK;
    // Summed in order, so results do not depend on the number of threads.
    std::vector<double> partial_products(x ? blocks * n : 0);
#pragma omp parallel for schedule(static) num_threads(threads) if (blocks > 4)
    for (long b = 0; b < blocks; b++) {
        const long start = b * BLOCK, size = count - start < BLOCK ? count - start : BLOCK;
        const T* tensor_blocks[4];
        A sum[BLOCK];
        for (long e = 0; e < size; e++) sum[e] = addend ? A(wide(addend[start + e])) : A(0);
        long j = 0;
        for (; j + 4 <= n; j += 4) {
            for (int k = 0; k < 4; k++) tensor_blocks[k] = tensors[j + k] + start;
            add_four<T, A>(tensor_blocks, a + j, x ? x + start : x, sum,
                           x ? &partial_products[b * n + j] : nullptr, size);
        }
        for (; j < n; j++)
            add_one<T, A>(tensors[j] + start, A(a[j]), x ? x + start : x, sum,
                          x ? &partial_products[b * n + j] : nullptr, size);
        for (long e = 0; e < size; e++) narrow(sum[e], out[start + e]);
    }
    if (x)
        for (long j = 0; j < n; j++) {
            products[j] = 0;
            for (long b = 0; b < blocks; b++) products[j] += partial_products[b * n + j];
        }
}

extern "C" void weighted_sum(long type, long n, const void* tensors, const void* a, const void* addend, const void* x,
                             void* out, void* products, long count, int threads) {
#define RUN(T, A)                                                                                                  \
    sum_blocks<T, A>(n, (const T* const*)tensors, (const double*)a, (const T*)addend, (const T*)x, (T*)out,        \
              (double*)products, count, threads)
    if (type == 0) RUN(float, float);
    if (type == 1) RUN(double, double);
    if (type == 2) RUN(bfloat16, float);
}
