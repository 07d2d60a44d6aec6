#include "host/parallel.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace kvp {
namespace {

// One parallel_for: shared by its threads, on the stack of the caller.
class Job {
 public:
  Job(int64_t count, ParallelBody body) : count_(count), body_(body) {}

  void work(int worker) noexcept {
    try {
      for (;;) {
        const int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
        if (item >= count_) return;
        body_(worker, item);
      }
    } catch (...) {
      next_.store(count_, std::memory_order_relaxed);
      const std::lock_guard lock(failure_mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }

  void rethrow_failure() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  const int64_t count_;
  const ParallelBody body_;
  std::atomic<int64_t> next_{0};
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
};

class Pool {
 public:
  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // Runs the job on up to `helpers` pool threads beside the caller; false if the pool is taken.
  bool try_run(Job& job, int helpers) {
    const std::unique_lock owner(owner_, std::try_to_lock);
    if (!owner.owns_lock()) return false;
    start_threads(helpers);
    {
      const std::lock_guard lock(mutex_);
      job_ = &job;
      places_ = std::min(helpers, static_cast<int>(threads_.size()));
      next_worker_ = 1;
    }
    wake_.notify_all();
    job.work(0);
    std::unique_lock lock(mutex_);
    places_ = 0;  // whoever wakes up late finds nothing to join
    idle_.wait(lock, [this] { return working_ == 0; });
    job_ = nullptr;
    return true;
  }

 private:
  void start_threads(int wanted) {
    try {
      while (static_cast<int>(threads_.size()) < wanted) {
        threads_.emplace_back([this] { serve(); });
      }
    } catch (const std::system_error&) {
      // The system grants no more threads: those that exist and the caller do the work.
    }
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopping_ || places_ > 0; });
      if (stopping_) return;
      --places_;
      ++working_;
      const int worker = next_worker_++;
      Job* const job = job_;
      lock.unlock();
      job->work(worker);
      lock.lock();
      if (--working_ == 0) idle_.notify_one();
    }
  }

  std::mutex owner_;  // held by the caller that uses the pool
  std::vector<std::thread> threads_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::condition_variable idle_;
  Job* job_ = nullptr;
  int places_ = 0;   // threads that may still join the job
  int working_ = 0;  // threads inside the job
  int next_worker_ = 0;
  bool stopping_ = false;
};

// Owns the process's pool. In a forked child the threads of the old pool do not exist and its
// mutexes may be held by them, so the child abandons it without touching it.
class PoolOwner {
 public:
  PoolOwner() {
    pthread_atfork(nullptr, nullptr, [] { instance().pool_ = new Pool; });
  }
  ~PoolOwner() { delete pool_; }

  static PoolOwner& instance() {
    static PoolOwner owner;
    return owner;
  }

  Pool& pool() { return *pool_; }

 private:
  Pool* pool_ = new Pool;
};

}  // namespace

void parallel_for(int threads, int64_t count, ParallelBody body) {
  Job job(count, body);
  const int helpers = static_cast<int>(std::min<int64_t>(threads, count)) - 1;
  if (helpers <= 0 || !PoolOwner::instance().pool().try_run(job, helpers)) job.work(0);
  job.rethrow_failure();
}

}  // namespace kvp
