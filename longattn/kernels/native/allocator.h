// A CPU allocator for torch that hands large tensors the memory of earlier ones.
//
// Fresh memory costs a page fault per 4 KiB, a third of a training step; glibc returns large blocks to the system, and
// below its threshold cannot put an aligned block into the hole that one of the same size has left. Here a freed block
// is kept for the next tensor of about its size, as long as what is used and what is kept are together no more than was
// ever used at once: so the peak is that of the tensors themselves.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <sys/mman.h>

#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <unordered_map>

namespace longattn {

constexpr size_t kLargeBytes = size_t{1} << 20;  // smaller tensors are torch's own allocator's
constexpr size_t kPageBytes = 4096;

class ReusingAllocator final : public c10::Allocator {
   public:
    static ReusingAllocator& instance() {
        static ReusingAllocator* allocator = new ReusingAllocator;  // lives as long as the last tensor
        return *allocator;
    }

    c10::DataPtr allocate(size_t bytes) override {
        if (bytes < kLargeBytes) return small_->allocate(bytes);
        void* data = take(bytes);
        return {data, data, &ReusingAllocator::give_back, c10::Device(c10::DeviceType::CPU)};
    }

    c10::DeleterFnPtr raw_deleter() const override { return &ReusingAllocator::give_back; }

    void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

    struct Bytes {
        size_t used, kept, peak;
    };

    Bytes bytes() {
        std::lock_guard<std::mutex> lock(mutex_);
        return {used_, kept_, peak_};
    }

    // Returns all kept memory to the system, and forgets the peak.
    void release() {
        std::lock_guard<std::mutex> lock(mutex_);
        while (!oldest_first_.empty()) drop_oldest();
        peak_ = used_;
    }

   private:
    struct Block {
        void* data;
        size_t bytes;
    };
    using Order = std::list<Block>;

    ReusingAllocator() : small_(c10::GetDefaultCPUAllocator()) {
        pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                       [] { instance().mutex_.unlock(); });
    }

    static void give_back(void* data) {
        if (data != nullptr && !instance().keep(data)) instance().small_->raw_deleter()(data);
    }

    void* take(size_t wanted) {
        const size_t bytes = (wanted + kPageBytes - 1) / kPageBytes * kPageBytes;
        std::lock_guard<std::mutex> lock(mutex_);
        const auto fit = by_size_.lower_bound(bytes);
        if (fit != by_size_.end() && fit->first <= bytes + bytes / 8) {
            const Block block = *fit->second;
            oldest_first_.erase(fit->second);
            by_size_.erase(fit);
            kept_ -= block.bytes;
            return use(block);
        }
        while (!oldest_first_.empty() && used_ + kept_ + bytes > peak_) drop_oldest();
        void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        TORCH_CHECK_WITH(OutOfMemoryError, data != MAP_FAILED, "out of memory: a tensor of ", wanted, " bytes on CPU");
        return use({data, bytes});
    }

    void* use(Block block) {
        used_ += block.bytes;
        peak_ = std::max(peak_, used_);
        sizes_[block.data] = block.bytes;
        return block.data;
    }

    // Returns false for memory that is not of here.
    bool keep(void* data) {
        std::lock_guard<std::mutex> lock(mutex_);
        const auto found = sizes_.find(data);
        if (found == sizes_.end()) return false;
        const Block block{data, found->second};
        sizes_.erase(found);
        used_ -= block.bytes;
        kept_ += block.bytes;
        oldest_first_.push_back(block);
        by_size_.emplace(block.bytes, std::prev(oldest_first_.end()));
        return true;
    }

    void drop_oldest() {
        const Block block = oldest_first_.front();
        for (auto [at, end] = by_size_.equal_range(block.bytes); at != end; ++at)
            if (at->second == oldest_first_.begin()) {
                by_size_.erase(at);
                break;
            }
        oldest_first_.pop_front();
        kept_ -= block.bytes;
        munmap(block.data, block.bytes);
    }

    c10::Allocator* small_;
    std::mutex mutex_;
    Order oldest_first_;                            // kept blocks
    std::multimap<size_t, Order::iterator> by_size_;  // the same, by their bytes
    std::unordered_map<void*, size_t> sizes_;       // blocks in use
    size_t used_ = 0, kept_ = 0, peak_ = 0;         // bytes
};

}  // namespace longattn
