// TurboMind's gate on a CPU, around the part that the patch adds: one block of threads that wait for each other
// as CUDA's do.

#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

struct Barrier {
    explicit Barrier(int size): size(size) {}
    void wait()
    {
        std::unique_lock<std::mutex> lock(mutex);
        const int                    now = turn;
        if (++arrived == size) {
            arrived = 0;
            ++turn;
            all.notify_all();
            return;
        }
        all.wait(lock, [&] { return turn != now; });
    }
    std::mutex              mutex;
    std::condition_variable all;
    int                     size, arrived = 0, turn = 0;
};

using Mask = void (*)(float*, int, int, int, int, int, void (*)(void*), void*);

static void wait(void* barrier)
{
    static_cast<Barrier*>(barrier)->wait();
}

// What upstream's kernel does after it, for one token: the best by choice, weights from the scores.
static void
pick(const float* scores, const float* choice, int experts, int top_k, float scale, int* index, float* weight)
{
    std::vector<bool> taken(experts);
    float             sum = 0.f;
    for (int k = 0; k < top_k; ++k) {
        int best = -1;
        for (int e = 0; e < experts; ++e) {
            const float v = std::isfinite(choice[e]) ? choice[e] : -INFINITY;
            if (!taken[e] && v > -INFINITY && (best < 0 || v > choice[best])) {
                best = e;
            }
        }
        index[k]  = best < 0 ? 0 : best;
        weight[k] = best < 0 ? 0.f : scores[best];
        sum += weight[k];
        if (best >= 0) {
            taken[best] = true;
        }
    }
    for (int k = 0; k < top_k; ++k) {
        weight[k] = weight[k] / sum * scale;
    }
}

extern "C" void route(Mask         mask,
                      const float* scores,
                      const float* bias,
                      int          tokens,
                      int          experts,
                      int          n_group,
                      int          topk_group,
                      int          top_k,
                      float        scale,
                      int          threads,
                      int*         index,
                      float*       weight)
{
    // As much as the kernel is given: scores for the choice, and one score a group.
    std::vector<float> shared(experts + n_group);
    Barrier            barrier(threads);
    auto               run = [&](int thread) {
        for (int t = 0; t < tokens; ++t) {
            for (int e = thread; e < experts; e += threads) {
                shared[e] = scores[t * experts + e] + bias[e];
            }
            barrier.wait();
            mask(shared.data(), experts, n_group, topk_group, thread, threads, wait, &barrier);
            if (thread == 0) {
                pick(scores + t * experts, shared.data(), experts, top_k, scale, index + t * top_k, weight + t * top_k);
            }
            barrier.wait();
        }
    };
    std::vector<std::thread> block;
    for (int i = 1; i < threads; ++i) {
        block.emplace_back(run, i);
    }
    run(0);
    for (auto& each : block) {
        each.join();
    }
}
