// What the fake libraries share: work that a stream has been given.
#pragma once

#include <functional>

// Gives `work` to a stream (or to the graph that captures it), to be run at the last moment that order allows.
// Returns a driver error code.
extern "C" __attribute__((visibility("default"))) int fake_cuda_enqueue(void *stream, std::function<void()> *work);
