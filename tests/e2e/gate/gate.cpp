// The patch's part of TurboMind's gate, for one thread of a block.
//
// patch_header.h and patch_masking.inl are the lines that the patch adds, as they stand in its diff.

#include "patch_header.h"

struct Index {
    int x;
};

extern "C" void mask(
    float* scores_for_choice, int experts, int n_group, int topk_group, int thread, int threads, void (*wait)(void*), void* at)
{
    using namespace turbomind;
    const Index threadIdx{thread};
    const Index blockDim{threads};
    auto        __syncthreads = [&] { wait(at); };
#include "patch_masking.inl"
    (void)blockDim;
}
