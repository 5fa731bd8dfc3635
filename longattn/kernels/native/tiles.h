// Attention of one sequence (one head of one batch entry), block of queries by block of queries, over the tiles of a
// block layout: the online softmax of FlashAttention (Dao et al. 2022, arXiv 2205.14135), forward and backward.
//
// Scores are kept transposed, (keys x queries): then a row's maximum, sum and lse are vectors over queries, hiding a
// key hides a row, and no product needs a transposed key. All operands are copied into scratch of the softmax's
// precision, padded with zeros to whole vectors, so that any strides and dtypes may come in.
#pragma once

#include <algorithm>
#include <limits>
#include <new>
#include <vector>

#include "simd.h"

namespace longattn {

constexpr int kAlignment = 64;   // bytes
constexpr int kPad = 16;         // queries and dimensions are padded to multiples of it

inline int64_t padded(int64_t n) { return (n + kPad - 1) / kPad * kPad; }

template <typename T>
class Scratch {  // aligned memory that only grows
   public:
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { release(); }
    T* take(int64_t count) {
        if (count > capacity_) {
            release();
            data_ = static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{kAlignment}));
            capacity_ = count;
        }
        return data_;
    }
    T* take_zeros(int64_t count) {
        T* data = take(count);
        std::fill(data, data + count, T(0));
        return data;
    }

   private:
    void release() {
        if (data_ != nullptr) ::operator delete(data_, std::align_val_t{kAlignment});
        data_ = nullptr;
    }
    T* data_ = nullptr;
    int64_t capacity_ = 0;
};

// Rows of `width` numbers in memory that is not ours; row t starts at data + t * stride.
template <typename X>
struct Rows {
    X* data = nullptr;
    int64_t stride = 0;
    X* at(int64_t token) const { return data + token * stride; }
};

// The visible tiles of one sequence: row r of query blocks holds the tiles starts[r] to starts[r + 1].
struct Tiles {
    const int64_t* starts;
    const int32_t* columns;     // key block of each tile
    const int32_t* masks;       // index of each tile's mask, -1 where all of it is visible
    const uint8_t* visible;     // (masks, block keys, block queries), 1 where visible
    const int32_t* first_key;   // of each mask, the first key with a visible pair
    const int32_t* end_key;     // one behind the last
    int64_t block;              // tokens
    int64_t query_blocks;
};

// Dropout of weights as a function of (seed, entry, head, query, key); the twin of kernels/dropout.py.
struct Dropout {
    bool active = false;
    uint32_t seed = 0;
    int32_t threshold = 0;
    double factor = 1.0;
};

inline uint32_t mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    return x ^ (x >> 16);
}

// One sequence, or the part of it at positions first, first + step, first + 2 * step, ...
template <typename IO, typename T>
struct Sequence {
    Rows<const IO> q, k, v, out, grad_out;
    Rows<IO> out_to;
    Rows<T> out_sum, grad_q, grad_k, grad_v;  // in the softmax's precision where several calls add up
    T* lse = nullptr;             // (queries), read and written with step `step`
    const T* grad_lse = nullptr;  // (queries) or null
    int64_t queries = 0, keys = 0, dim = 0, first = 0, step = 1;
    const uint8_t* hidden = nullptr;            // (all keys), 1 where no query may see the key; or null
    const int64_t* query_index = nullptr;       // (all queries) place in the document of gathered queries; or null
    const int64_t* key_index = nullptr;         // (all keys)
    const int64_t* query_document = nullptr;    // (all queries); or null; -1 is padding
    const int64_t* key_document = nullptr;      // (all keys)
    const T* bias = nullptr;      // (distances) added at place of query - place of key + bias_origin; or null
    int64_t bias_origin = 0;
    int64_t entry = 0, head = 0;
    T scale = 1;
    Dropout dropout;
    Tiles tiles;

    int64_t token(int64_t index) const { return first + index * step; }
    int64_t query_place(int64_t token) const { return query_index == nullptr ? token : query_index[token]; }
    int64_t key_place(int64_t token) const { return key_index == nullptr ? token : key_index[token]; }
};

// What is known of each block of packed keys, to skip tiles and to leave masks out.
struct KeyBlock {
    int64_t lowest_document, highest_document;
    int32_t hidden;
};

// Gradients of the keys and values that some query blocks see, packed, from key `begin` on.
template <typename T>
struct KeyGradients {
    Scratch<T> k, v;
    int64_t begin = 0, end = 0, width = 0;

    template <typename IO>
    void add_to(const Sequence<IO, T>& s) {
        for (int64_t j = begin; j < end; j++) {
            const T *from_k = k.take(0) + (j - begin) * width, *from_v = v.take(0) + (j - begin) * width;
            T *to_k = s.grad_k.at(s.token(j)), *to_v = s.grad_v.at(s.token(j));
            for (int64_t d = 0; d < s.dim; d++) to_k[d] += from_k[d], to_v[d] += from_v[d];
        }
    }
};

template <typename IO, typename T>
class Worker {  // the scratch of one thread
   public:
    using V = typename Vectors<T>::V;
    using I = typename Vectors<T>::I;
    static constexpr int lanes = kLanes<T>;

    // Computes the query blocks [row_begin, row_end), merged with what out and lse hold already if `merge`.
    void forward(const Sequence<IO, T>& s, int64_t row_begin, int64_t row_end, bool merge) {
        pack_keys(s, row_begin, row_end);
        for (int64_t row = row_begin; row < row_end; row++) {
            pack_queries(s, row);
            T* sum_of_values = out_.take_zeros(count_padded_ * dim_);
            T* highest = highest_.take(count_padded_);
            T* total = total_.take_zeros(count_padded_);
            std::fill(highest, highest + count_padded_, -std::numeric_limits<T>::infinity());
            for_each_tile(s, row, [&](int64_t key, int64_t keys, const uint8_t* mask, bool documents, bool hides) {
                T* scores = scores_.take(keys * count_padded_);
                score(s, key, keys, mask, documents, hides, scores);
                add_tile(s, key, keys, scores, highest, total, sum_of_values);
            });
            write_row(s, highest, total, sum_of_values, merge);
        }
    }

    // Adds to grad_q, and sets `gradients` to what the query blocks [row_begin, row_end) add to those of keys and values.
    void backward(const Sequence<IO, T>& s, int64_t row_begin, int64_t row_end, KeyGradients<T>& gradients) {
        pack_keys(s, row_begin, row_end);
        const int64_t rows = (block_end_ - block_begin_) * s.tiles.block;
        gradients.begin = block_begin_ * s.tiles.block, gradients.width = dim_;
        gradients.end = std::max(gradients.begin, std::min(s.keys, block_end_ * s.tiles.block));
        T *grad_k = gradients.k.take_zeros(rows * dim_), *grad_v = gradients.v.take_zeros(rows * dim_);
        for (int64_t row = row_begin; row < row_end; row++) {
            pack_queries(s, row);
            pack_grad_out(s);
            T* grad_q = out_.take_zeros(count_padded_ * dim_);
            for_each_tile(s, row, [&](int64_t key, int64_t keys, const uint8_t* mask, bool documents, bool hides) {
                T* weights = scores_.take(keys * count_padded_);
                score(s, key, keys, mask, documents, hides, weights);
                backward_tile(s, key, keys, weights, grad_q, grad_k + key * dim_, grad_v + key * dim_);
            });
            for (int64_t i = 0; i < count_; i++) {
                T* to = s.grad_q.at(s.token(start_ + i));
                for (int64_t d = 0; d < s.dim; d++) to[d] += grad_q[i * dim_ + d] * s.scale;
            }
        }
    }

   private:
    void pack_keys(const Sequence<IO, T>& s, int64_t row_begin, int64_t row_end) {
        dim_ = padded(s.dim);
        const int64_t block = s.tiles.block;
        const auto [low, high] = std::minmax_element(s.tiles.columns + s.tiles.starts[row_begin],
                                                     s.tiles.columns + s.tiles.starts[row_end]);
        const bool empty = s.tiles.starts[row_begin] == s.tiles.starts[row_end];
        block_begin_ = empty ? 0 : *low;
        block_end_ = empty ? 0 : *high + 1;
        const int64_t begin = block_begin_ * block, end = std::max(begin, std::min(s.keys, block_end_ * block));
        T *k = k_.take((block_end_ - block_begin_) * block * dim_), *v = v_.take((block_end_ - block_begin_) * block * dim_);
        key_blocks_.assign(block_end_ - block_begin_, {std::numeric_limits<int64_t>::max(), -1, 0});
        for (int64_t j = begin; j < end; j++) {
            const int64_t token = s.token(j);
            copy_row(s.k.at(token), s.dim, k + (j - begin) * dim_);
            copy_row(s.v.at(token), s.dim, v + (j - begin) * dim_);
            KeyBlock& known = key_blocks_[j / block - block_begin_];
            if (s.key_document != nullptr) {
                known.lowest_document = std::min(known.lowest_document, s.key_document[token]);
                known.highest_document = std::max(known.highest_document, s.key_document[token]);
            }
            if (s.hidden != nullptr) known.hidden += s.hidden[token];
        }
    }

    void pack_queries(const Sequence<IO, T>& s, int64_t row) {
        start_ = row * s.tiles.block;
        count_ = std::min(s.tiles.block, s.queries - start_);
        count_padded_ = padded(count_);
        T *q = q_.take(count_padded_ * dim_), *turned = q_turned_.take(count_padded_ * dim_);
        pack_block(s, s.q, q, turned, s.scale);
        lowest_document_ = std::numeric_limits<int64_t>::max(), highest_document_ = -1;
        if (s.query_document != nullptr) {
            T* documents = document_.take(count_padded_);
            for (int64_t i = 0; i < count_padded_; i++) {
                const int64_t document = i < count_ ? std::max<int64_t>(s.query_document[s.token(start_ + i)], -1) : -1;
                documents[i] = static_cast<T>(document);  // exact up to 2^24 documents in a row
                if (i >= count_) continue;
                lowest_document_ = std::min(lowest_document_, document);
                highest_document_ = std::max(highest_document_, document);
            }
        }
        if (s.dropout.active) {
            uint32_t* rows = dropout_row_.take(count_padded_);
            for (int64_t i = 0; i < count_padded_; i++) {
                const int64_t place = i < count_ ? s.query_place(s.token(start_ + i)) : 0;
                const uint32_t query = mix(static_cast<uint32_t>(place) ^ s.dropout.seed);
                rows[i] = mix(mix(query + static_cast<uint32_t>(s.head)) + static_cast<uint32_t>(s.entry));
            }
        }
    }

    void pack_grad_out(const Sequence<IO, T>& s) {
        T* grad = grad_out_.take(count_padded_ * dim_);
        pack_block(s, s.grad_out, grad, grad_out_turned_.take(count_padded_ * dim_), T(1));
        T *delta = delta_.take_zeros(count_padded_), *lse = highest_.take(count_padded_);
        for (int64_t i = 0; i < count_padded_; i++) {
            // Rows that see nothing, and padding rows, get lse +inf, hence weights exp(-inf) = 0.
            lse[i] = std::numeric_limits<T>::infinity();
            if (i >= count_) continue;
            const int64_t token = s.token(start_ + i);
            if (s.lse[token] == -std::numeric_limits<T>::infinity()) continue;
            lse[i] = s.lse[token];
            const IO* out = s.out.at(token);
            for (int64_t d = 0; d < s.dim; d++) delta[i] += grad[i * dim_ + d] * static_cast<T>(out[d]);
            if (s.grad_lse != nullptr) delta[i] -= s.grad_lse[token];
        }
    }

    // Copies the queries' rows of x, times `factor`, as (queries x dim) and as (dim x queries).
    void pack_block(const Sequence<IO, T>& s, Rows<const IO> x, T* rows, T* turned, T factor) {
        for (int64_t i = 0; i < count_padded_; i++) {
            T* row = rows + i * dim_;
            if (i < count_) {
                copy_row(x.at(s.token(start_ + i)), s.dim, row);
                for (int64_t d = 0; d < dim_; d++) row[d] *= factor;
            } else {
                std::fill(row, row + dim_, T(0));
            }
            for (int64_t d = 0; d < dim_; d++) turned[d * count_padded_ + i] = row[d];
        }
    }

    void copy_row(const IO* from, int64_t dim, T* to) const {
        for (int64_t d = 0; d < dim; d++) to[d] = static_cast<T>(from[d]);
        for (int64_t d = dim; d < dim_; d++) to[d] = T(0);
    }

    // Calls visit(first packed key, keys, mask or null, whether documents and whether hidden keys must be looked at).
    template <typename Visit>
    void for_each_tile(const Sequence<IO, T>& s, int64_t row, Visit visit) {
        const int64_t block = s.tiles.block;
        for (int64_t t = s.tiles.starts[row]; t < s.tiles.starts[row + 1]; t++) {
            const int64_t column = s.tiles.columns[t], mask = s.tiles.masks[t];
            const KeyBlock& known = key_blocks_[column - block_begin_];
            const int64_t length = std::min(block, s.keys - column * block);
            if (length <= 0) continue;  // the plan is of the longest sequence
            bool documents = false;
            if (s.query_document != nullptr) {
                if (lowest_document_ > known.highest_document || known.lowest_document > highest_document_) continue;
                if (highest_document_ < 0 || known.highest_document < 0) continue;
                documents = lowest_document_ != highest_document_ || known.lowest_document != known.highest_document;
            }
            if (known.hidden == length) continue;
            int64_t begin = 0, end = length;
            if (mask >= 0) {
                begin = s.tiles.first_key[mask], end = std::min<int64_t>(length, s.tiles.end_key[mask]);
                if (begin >= end) continue;
            }
            const uint8_t* visible = mask < 0 ? nullptr : s.tiles.visible + (mask * block + begin) * block;
            visit((column - block_begin_) * block + begin, end - begin, visible, documents, known.hidden > 0);
        }
    }

    // scores (keys x queries) = k q, with -inf where a pair is hidden.
    void score(const Sequence<IO, T>& s, int64_t key, int64_t keys, const uint8_t* mask, bool documents, bool hides,
               T* scores) {
        multiply<T>(keys, count_padded_, dim_, k_.take(0) + key * dim_, dim_, 1, q_turned_.take(0), count_padded_, scores,
                    count_padded_, false);
        if (s.bias == nullptr && mask == nullptr && !documents && !hides) return;
        const V nothing = splat(-std::numeric_limits<T>::infinity());
        for (int64_t j = 0; j < keys; j++) {
            T* row = scores + j * count_padded_;
            const int64_t token = s.token(block_begin_ * s.tiles.block + key + j);
            if (hides && s.hidden[token]) {
                for (int64_t i = 0; i < count_padded_; i += lanes) store(row + i, nothing);
                continue;
            }
            if (s.bias != nullptr) add_bias(s, token, row);
            if (mask != nullptr) {
                const uint8_t* visible = mask + j * s.tiles.block;
                for (int64_t i = 0; i < count_padded_; i += lanes) {
                    typename Vectors<T>::Bytes bytes;
                    std::memcpy(&bytes, visible + i, sizeof bytes);
                    const I seen = __builtin_convertvector(bytes, I) != 0;
                    store(row + i, seen ? load(row + i) : nothing);
                }
            }
            if (documents) {
                const V own = splat(static_cast<T>(s.key_document[token] < 0 ? -2 : s.key_document[token]));
                for (int64_t i = 0; i < count_padded_; i += lanes)
                    store(row + i, load(document_.take(0) + i) == own ? load(row + i) : nothing);
            }
        }
    }

    void add_bias(const Sequence<IO, T>& s, int64_t key_token, T* row) const {
        const T* by_distance = s.bias + s.bias_origin - s.key_place(key_token);
        for (int64_t i = 0; i < count_; i++) row[i] += by_distance[s.query_place(s.token(start_ + i))];
    }

    // Takes the tile's scores into the running maximum, total and sum of values of each query.
    void add_tile(const Sequence<IO, T>& s, int64_t key, int64_t keys, T* scores, T* highest, T* total, T* sum) {
        bool grown = false;
        T* correction = correction_.take(count_padded_);
        for (int64_t i = 0; i < count_padded_; i += lanes) {
            const V old = load(highest + i);
            V top = old;
            for (int64_t j = 0; j < keys; j++) {
                const V x = load(scores + j * count_padded_ + i);
                top = x > top ? x : top;
            }
            const V zero = {};
            const V base = top == -std::numeric_limits<T>::infinity() ? zero : top;
            const V shrink = exponential(old - base);
            V added = {};
            for (int64_t j = 0; j < keys; j++) {
                const V weight = exponential(load(scores + j * count_padded_ + i) - base);
                store(scores + j * count_padded_ + i, weight);
                added += weight;
            }
            store(highest + i, top);
            store(total + i, load(total + i) * shrink + added);
            store(correction + i, shrink);
            const I changed = top != old;
            for (int lane = 0; lane < lanes; lane++) grown |= changed[lane] != 0;
        }
        if (grown)
            for (int64_t i = 0; i < count_padded_; i++) {
                const V factor = splat(correction[i]);
                for (int64_t d = 0; d < dim_; d += lanes) store(sum + i * dim_ + d, load(sum + i * dim_ + d) * factor);
            }
        if (s.dropout.active) drop(s, key, keys, scores);
        multiply<T>(count_padded_, dim_, keys, scores, 1, count_padded_, v_.take(0) + key * dim_, dim_, sum, dim_, true);
    }

    void write_row(const Sequence<IO, T>& s, const T* highest, const T* total, const T* sum, bool merge) {
        const T nothing = -std::numeric_limits<T>::infinity();
        for (int64_t i = 0; i < count_; i++) {
            const int64_t token = s.token(start_ + i);
            T lse = total[i] == 0 ? nothing : highest[i] + std::log(total[i]);
            T share = total[i] == 0 ? T(0) : 1 / total[i], kept = 0;
            if (merge && s.lse[token] != nothing) {
                const T old = s.lse[token], top = std::max(old, lse);
                const T both = top + std::log(std::exp(old - top) + std::exp(lse - top));
                share *= std::exp(lse - both), kept = std::exp(old - both), lse = both;
            }
            s.lse[token] = lse;
            T* gathered = s.out_sum.data == nullptr ? nullptr : s.out_sum.at(token);
            for (int64_t d = 0; d < s.dim; d++) {
                T x = sum[i * dim_ + d] * share;
                if (kept != 0) x += gathered[d] * kept;
                if (gathered != nullptr) gathered[d] = x;
                else s.out_to.at(token)[d] = static_cast<IO>(x);
            }
        }
    }

    // From scores to what they add to the gradients of queries, keys and values.
    void backward_tile(const Sequence<IO, T>& s, int64_t key, int64_t keys, T* weights, T* grad_q, T* grad_k,
                       T* grad_v) {
        const T *lse = highest_.take(0), *delta = delta_.take(0);
        T* grad = grad_scores_.take(keys * count_padded_);
        for (int64_t j = 0; j < keys; j++)
            for (int64_t i = 0; i < count_padded_; i += lanes) {
                T* at = weights + j * count_padded_ + i;
                store(at, exponential(load(at) - load(lse + i)));
            }
        multiply<T>(keys, count_padded_, dim_, v_.take(0) + key * dim_, dim_, 1, grad_out_turned_.take(0), count_padded_,
                    grad, count_padded_, false);
        T *values = weights, *factors = nullptr;
        if (s.dropout.active) {
            factors = factors_.take(keys * count_padded_), values = dropped_.take(keys * count_padded_);
            std::fill(factors, factors + keys * count_padded_, T(1));
            drop(s, key, keys, factors);
            for (int64_t x = 0; x < keys * count_padded_; x++) values[x] = weights[x] * factors[x], grad[x] *= factors[x];
        }
        multiply<T>(keys, dim_, count_padded_, values, count_padded_, 1, grad_out_.take(0), dim_, grad_v, dim_, true);
        for (int64_t j = 0; j < keys; j++)
            for (int64_t i = 0; i < count_padded_; i += lanes) {
                T* at = grad + j * count_padded_ + i;
                store(at, load(weights + j * count_padded_ + i) * (load(at) - load(delta + i)));
            }
        multiply<T>(count_padded_, dim_, keys, grad, 1, count_padded_, k_.take(0) + key * dim_, dim_, grad_q, dim_, true);
        multiply<T>(keys, dim_, count_padded_, grad, count_padded_, 1, q_.take(0), dim_, grad_k, dim_, true);
    }

    void drop(const Sequence<IO, T>& s, int64_t key, int64_t keys, T* weights) {
        const uint32_t* rows = dropout_row_.take(0);
        const T factor = static_cast<T>(s.dropout.factor);
        for (int64_t j = 0; j < keys; j++) {
            const int64_t place = s.key_place(s.token(block_begin_ * s.tiles.block + key + j));
            const uint32_t column = mix(static_cast<uint32_t>(place) + 0x3C6EF372u);
            T* row = weights + j * count_padded_;
            for (int64_t i = 0; i < count_padded_; i++)
                row[i] *= static_cast<int32_t>(mix(rows[i] ^ column)) < s.dropout.threshold ? factor : T(0);
        }
    }

    int64_t dim_ = 0, block_begin_ = 0, block_end_ = 0;    // of the packed keys
    int64_t start_ = 0, count_ = 0, count_padded_ = 0;     // of the packed queries
    int64_t lowest_document_ = 0, highest_document_ = 0;
    std::vector<KeyBlock> key_blocks_;
    Scratch<T> k_, v_, q_, q_turned_, grad_out_, grad_out_turned_, document_, out_, highest_, total_;
    Scratch<T> correction_, delta_, scores_, grad_scores_, factors_, dropped_;
    Scratch<uint32_t> dropout_row_;
};

}  // namespace longattn
