// Vectors of the width that the compiler is told of, and the products of small matrices that the attention is made of.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace longattn {

#if defined(LONGATTN_VECTOR_BYTES)  // for tests: any width runs on any machine
constexpr int kVectorBytes = LONGATTN_VECTOR_BYTES, kVectorsPerPanel = 64 / LONGATTN_VECTOR_BYTES;
#elif defined(__AVX512F__)
constexpr int kVectorBytes = 64, kVectorsPerPanel = 4;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kVectorsPerPanel = 2;
#else
constexpr int kVectorBytes = 16, kVectorsPerPanel = 4;
#endif
constexpr int kRowsPerPanel = 6;  // with the panel's vectors, as many sums as there are registers for

template <typename T>
struct Vectors;

template <>
struct Vectors<float> {
    typedef float V __attribute__((vector_size(kVectorBytes)));
    typedef int32_t I __attribute__((vector_size(kVectorBytes)));
    typedef uint32_t U __attribute__((vector_size(kVectorBytes)));
    typedef uint8_t Bytes __attribute__((vector_size(kVectorBytes / 4)));
};

template <>
struct Vectors<double> {
    typedef double V __attribute__((vector_size(kVectorBytes)));
    typedef int64_t I __attribute__((vector_size(kVectorBytes)));
    typedef uint64_t U __attribute__((vector_size(kVectorBytes)));
    typedef uint8_t Bytes __attribute__((vector_size(kVectorBytes / 8)));
};

template <typename T>
constexpr int kLanes = kVectorBytes / sizeof(T);

template <typename T>
inline typename Vectors<T>::V load(const T* from) {
    typename Vectors<T>::V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

template <typename T>
inline void store(T* to, typename Vectors<T>::V v) {
    std::memcpy(to, &v, sizeof v);
}

template <typename T>
inline typename Vectors<T>::V splat(T x) {
    return x - typename Vectors<T>::V{};  // minus 0 keeps the sign of zero, infinity and NaN
}

// e^x. Relative error below 2e-7; 0 below -87.3; NaN stays NaN.
inline Vectors<float>::V exponential(Vectors<float>::V x) {
    using V = Vectors<float>::V;
    using I = Vectors<float>::I;
    const I vanishes = x < -87.3f;
    x = x > 88.3f ? splat(88.3f) : x;
    x = vanishes ? splat(-87.3f) : x;
    const V shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
    const V n = shifted - 12582912.0f;
    const V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    V p = 1.9875691500e-4f * r + 1.3981999507e-3f;  // Cephes' expf
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + (r + 1.0f);
    const I power = (std::bit_cast<I>(shifted) - 0x4B400000 + 127) << 23;
    const V result = p * std::bit_cast<V>(power);
    return vanishes ? V{} : result;
}

inline Vectors<double>::V exponential(Vectors<double>::V x) {
    for (int lane = 0; lane < kLanes<double>; lane++) x[lane] = std::exp(x[lane]);
    return x;
}

// C[rows x vectors] (+)= A B for one block of C that stays in registers. A's element (i, k) is a[i * ai + k * ak].
template <typename T, int Rows, int Count>
inline void multiply_panel(int64_t depth, const T* a, int64_t ai, int64_t ak, const T* b, int64_t ldb, T* c, int64_t ldc,
                           bool add) {
    using V = typename Vectors<T>::V;
    constexpr int lanes = kLanes<T>;
    V sum[Rows][Count];
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < Count; j++) sum[i][j] = add ? load(c + i * ldc + j * lanes) : V{};
    for (int64_t k = 0; k < depth; k++) {
        V row[Count];
#pragma GCC unroll 8
        for (int j = 0; j < Count; j++) row[j] = load(b + k * ldb + j * lanes);
#pragma GCC unroll 8
        for (int i = 0; i < Rows; i++) {
            const V x = splat(a[i * ai + k * ak]);
#pragma GCC unroll 8
            for (int j = 0; j < Count; j++) sum[i][j] += x * row[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < Rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < Count; j++) store(c + i * ldc + j * lanes, sum[i][j]);
}

template <typename T, int Rows>
inline void multiply_rows(int count, int64_t depth, const T* a, int64_t ai, int64_t ak, const T* b, int64_t ldb, T* c,
                          int64_t ldc, bool add) {
    switch (count) {
        case 1: return multiply_panel<T, Rows, 1>(depth, a, ai, ak, b, ldb, c, ldc, add);
        case 2: return multiply_panel<T, Rows, 2>(depth, a, ai, ak, b, ldb, c, ldc, add);
        case 3: return multiply_panel<T, Rows, 3>(depth, a, ai, ak, b, ldb, c, ldc, add);
        default: return multiply_panel<T, Rows, 4>(depth, a, ai, ak, b, ldb, c, ldc, add);
    }
}

// C (+)= A B, for `columns` of B and C that fill whole vectors.
template <typename T>
void multiply(int64_t rows, int64_t columns, int64_t depth, const T* a, int64_t ai, int64_t ak, const T* b, int64_t ldb,
              T* c, int64_t ldc, bool add) {
    constexpr int lanes = kLanes<T>;
    for (int64_t column = 0; column < columns; column += kVectorsPerPanel * lanes) {
        const int64_t left = (columns - column) / lanes;
        const int count = left < kVectorsPerPanel ? left : kVectorsPerPanel;
        int64_t row = 0;
        for (; row + kRowsPerPanel <= rows; row += kRowsPerPanel)
            multiply_rows<T, kRowsPerPanel>(count, depth, a + row * ai, ai, ak, b + column, ldb, c + row * ldc + column,
                                            ldc, add);
        for (; row + 4 <= rows; row += 4)
            multiply_rows<T, 4>(count, depth, a + row * ai, ai, ak, b + column, ldb, c + row * ldc + column, ldc, add);
        for (; row + 2 <= rows; row += 2)
            multiply_rows<T, 2>(count, depth, a + row * ai, ai, ak, b + column, ldb, c + row * ldc + column, ldc, add);
        for (; row < rows; row++)
            multiply_rows<T, 1>(count, depth, a + row * ai, ai, ak, b + column, ldb, c + row * ldc + column, ldc, add);
    }
}

}  // namespace longattn
