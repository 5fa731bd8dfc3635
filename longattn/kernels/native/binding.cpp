// The operators of `torch.ops.longattn`: attention, spread over threads, and the reuse of memory.
// Shapes: B batch, H heads, L queries, S keys, D head dimension.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <atomic>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>

#include "allocator.h"
#include "tiles.h"

namespace longattn {
namespace {

using at::Tensor;

template <typename X>
const X* pointer(const std::optional<Tensor>& x) {
    return x.has_value() ? x->const_data_ptr<X>() : nullptr;
}

// What both operators take besides the operands.
struct Setting {
    Tensor starts, columns, masks, visible, first_key, end_key;
    int64_t plan_batch, plan_heads, block, modulus;
    std::optional<Tensor> hidden, query_document, key_document, query_index, key_index, bias;
    int64_t bias_origin;
    double scale;
    std::optional<Dropout> dropout;
};

struct Operands {
    Tensor q, k, v, lse;
    std::optional<Tensor> out, grad_out, grad_lse, grad_q, grad_k, grad_v;
};

// One task of a call: some query blocks of the positions `residue` + i * modulus of one head of one entry.
struct Task {
    int64_t entry, head, residue, row_begin, row_end;
};

template <typename X>
Rows<X> rows_of(const Tensor& x_BHLD, const Task& task) {
    using Plain = std::remove_const_t<X>;
    return {const_cast<Plain*>(x_BHLD.const_data_ptr<Plain>()) + task.entry * x_BHLD.stride(0) + task.head * x_BHLD.stride(1),
            x_BHLD.stride(2)};
}

template <typename X>
const X* entry_of(const std::optional<Tensor>& x_BN, int64_t entry) {
    return x_BN.has_value() ? pointer<X>(x_BN) + entry * x_BN->size(1) : nullptr;
}

template <typename IO, typename T>
Sequence<IO, T> sequence_of(const Setting& setting, const Operands& operands, const Task& task) {
    const Tensor& q = operands.q;
    const int64_t heads = q.size(1), queries = q.size(2), keys = operands.k.size(2);
    Sequence<IO, T> s;
    s.q = rows_of<const IO>(q, task), s.k = rows_of<const IO>(operands.k, task), s.v = rows_of<const IO>(operands.v, task);
    if (operands.grad_out.has_value()) {
        s.out = rows_of<const IO>(*operands.out, task);
        s.grad_out = rows_of<const IO>(*operands.grad_out, task);
        s.grad_q = rows_of<T>(*operands.grad_q, task);
        s.grad_k = rows_of<T>(*operands.grad_k, task);
        s.grad_v = rows_of<T>(*operands.grad_v, task);
    } else if (operands.out->scalar_type() == c10::CppTypeToScalarType<T>::value) {
        s.out_sum = rows_of<T>(*operands.out, task);
    } else {
        s.out_to = rows_of<IO>(*operands.out, task);
    }
    const int64_t row = (task.entry * heads + task.head) * queries;
    s.lse = const_cast<T*>(operands.lse.const_data_ptr<T>()) + row;
    if (operands.grad_lse.has_value()) s.grad_lse = pointer<T>(operands.grad_lse) + row;
    s.step = setting.modulus, s.first = task.residue;
    s.queries = (queries - task.residue + s.step - 1) / s.step;
    s.keys = (keys - task.residue + s.step - 1) / s.step;
    s.dim = q.size(3);
    s.hidden = reinterpret_cast<const uint8_t*>(entry_of<bool>(setting.hidden, task.entry));
    s.query_document = entry_of<int64_t>(setting.query_document, task.entry);
    s.key_document = entry_of<int64_t>(setting.key_document, task.entry);
    s.query_index = entry_of<int64_t>(setting.query_index, task.entry);
    s.key_index = entry_of<int64_t>(setting.key_index, task.entry);
    s.bias = entry_of<T>(setting.bias, task.head);
    s.bias_origin = setting.bias_origin;
    s.entry = task.entry, s.head = task.head;
    s.scale = static_cast<T>(setting.scale);
    if (setting.dropout.has_value()) s.dropout = *setting.dropout;
    const int64_t plan = (setting.plan_batch > 1 ? task.entry : 0) * setting.plan_heads + (setting.plan_heads > 1 ? task.head : 0);
    const int64_t query_blocks = (setting.starts.numel() - 1) / (setting.plan_batch * setting.plan_heads);
    s.tiles = {setting.starts.const_data_ptr<int64_t>() + plan * query_blocks,
               setting.columns.const_data_ptr<int32_t>(),
               setting.masks.const_data_ptr<int32_t>(),
               setting.visible.const_data_ptr<uint8_t>(),
               setting.first_key.const_data_ptr<int32_t>(),
               setting.end_key.const_data_ptr<int32_t>(),
               setting.block,
               (s.queries + setting.block - 1) / setting.block};
    return s;
}

// Cuts the sequences into parts only where there are too few of them to keep all threads busy to the end.
int64_t parts_per_sequence(int64_t sequences, int64_t query_blocks) {
    const int64_t threads = at::get_num_threads();
    if (threads == 1 || sequences >= 3 * threads) return 1;
    return std::max<int64_t>(1, std::min(query_blocks, (3 * threads + sequences - 1) / sequences));
}

std::vector<Task> tasks_of(const Setting& setting, const Tensor& q, int64_t parts, int64_t query_blocks) {
    std::vector<Task> tasks;
    for (int64_t entry = 0; entry < q.size(0); entry++)
        for (int64_t head = 0; head < q.size(1); head++)
            for (int64_t residue = 0; residue < setting.modulus; residue++)
                for (int64_t part = 0; part < parts; part++)
                    tasks.push_back({entry, head, residue, query_blocks * part / parts, query_blocks * (part + 1) / parts});
    return tasks;
}

// Calls work(task) for each in [0, count), by whichever thread is free.
template <typename Make>
void share_out(int64_t count, Make make_worker) {
    std::atomic<int64_t> next{0};
    at::parallel_for(0, std::min<int64_t>(count, at::get_num_threads()), 1, [&](int64_t begin, int64_t end) {
        auto work = make_worker();
        for (int64_t thread = begin; thread < end; thread++)
            for (int64_t task = next++; task < count; task = next++) work(task);
    });
}

template <typename IO, typename T>
void run(const Setting& setting, const Operands& operands, bool merge) {
    const int64_t longest = (operands.q.size(2) + setting.modulus - 1) / setting.modulus;
    const int64_t query_blocks = (longest + setting.block - 1) / setting.block;
    const int64_t sequences = operands.q.size(0) * operands.q.size(1) * setting.modulus;
    const int64_t parts = parts_per_sequence(sequences, query_blocks);
    const std::vector<Task> tasks = tasks_of(setting, operands.q, parts, query_blocks);
    const bool backward = operands.grad_out.has_value();
    std::vector<KeyGradients<T>> kept(backward && parts > 1 ? tasks.size() : 0);
    share_out(tasks.size(), [&] {
        return [&, worker = std::make_shared<Worker<IO, T>>(), own = std::make_shared<KeyGradients<T>>()](int64_t index) {
            const Sequence<IO, T> s = sequence_of<IO, T>(setting, operands, tasks[index]);
            const int64_t row_end = std::min(tasks[index].row_end, s.tiles.query_blocks);
            if (tasks[index].row_begin >= row_end) return;
            if (!backward) return worker->forward(s, tasks[index].row_begin, row_end, merge);
            KeyGradients<T>& gradients = parts > 1 ? kept[index] : *own;
            worker->backward(s, tasks[index].row_begin, row_end, gradients);
            if (parts == 1) gradients.add_to(s);
        };
    });
    if (kept.empty()) return;
    share_out(sequences, [&] {
        return [&](int64_t sequence) {  // in a fixed order, whatever thread was first
            for (int64_t index = sequence * parts; index < (sequence + 1) * parts; index++)
                kept[index].add_to(sequence_of<IO, T>(setting, operands, tasks[index]));
        };
    });
}

void dispatch(const Setting& setting, const Operands& operands, bool merge) {
    switch (operands.q.scalar_type()) {
        case at::kFloat: return run<float, float>(setting, operands, merge);
        case at::kDouble: return run<double, double>(setting, operands, merge);
        case at::kBFloat16: return run<c10::BFloat16, float>(setting, operands, merge);
        case at::kHalf: return run<c10::Half, float>(setting, operands, merge);
        default: TORCH_CHECK(false, "no attention for ", operands.q.scalar_type());
    }
}

// Reads what `native/engine.py` packs: the lists are in the order of the names below.
Setting setting_of(at::TensorList plan, const c10::List<std::optional<Tensor>>& batch, at::IntArrayRef integers,
                   at::ArrayRef<double> factors) {
    TORCH_CHECK(plan.size() == 6 && batch.size() == 6 && integers.size() == 7 && factors.size() == 2);
    std::optional<Dropout> dropout;
    if (factors[1] != 0.0)
        dropout = Dropout{true, static_cast<uint32_t>(integers[5]), static_cast<int32_t>(integers[6]), factors[1]};
    return {plan[0], plan[1], plan[2], plan[3], plan[4], plan[5],
            integers[0], integers[1], integers[2], integers[3],
            batch.get(0), batch.get(1), batch.get(2), batch.get(3), batch.get(4), batch.get(5),
            integers[4], factors[0], dropout};
}

void forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse, bool merge,
             at::TensorList plan, const c10::List<std::optional<Tensor>>& batch, at::IntArrayRef integers,
             at::ArrayRef<double> factors) {
    Operands operands{q, k, v, lse};
    operands.out = out;
    dispatch(setting_of(plan, batch, integers, factors), operands, merge);
}

void backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
              const Tensor& grad_out, const std::optional<Tensor>& grad_lse, const Tensor& grad_q, const Tensor& grad_k,
              const Tensor& grad_v, at::TensorList plan, const c10::List<std::optional<Tensor>>& batch,
              at::IntArrayRef integers, at::ArrayRef<double> factors) {
    dispatch(setting_of(plan, batch, integers, factors),
             Operands{q, k, v, lse, out, grad_out, grad_lse, grad_q, grad_k, grad_v}, false);
}

void reuse_memory() { c10::SetCPUAllocator(&ReusingAllocator::instance(), /*priority=*/1); }

void release_memory() { ReusingAllocator::instance().release(); }

std::tuple<int64_t, int64_t, int64_t> memory_in_use() {
    const auto bytes = ReusingAllocator::instance().bytes();
    return {bytes.used, bytes.kept, bytes.peak};
}

}  // namespace
}  // namespace longattn

TORCH_LIBRARY(longattn, library) {
    library.def(
        "attention_forward(Tensor q, Tensor k, Tensor v, Tensor(a!) out, Tensor(b!) lse, bool merge, Tensor[] plan, "
        "Tensor?[] batch, int[] integers, float[] factors) -> ()",
        &longattn::forward);
    library.def(
        "attention_backward(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor grad_out, Tensor? grad_lse, "
        "Tensor(a!) grad_q, Tensor(b!) grad_k, Tensor(c!) grad_v, Tensor[] plan, Tensor?[] batch, int[] integers, "
        "float[] factors) -> ()",
        &longattn::backward);
    library.def("reuse_memory() -> ()", &longattn::reuse_memory);
    library.def("release_memory() -> ()", &longattn::release_memory);
    library.def("memory_in_use() -> (int, int, int)", &longattn::memory_in_use);
}
