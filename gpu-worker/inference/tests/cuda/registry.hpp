// The kernels that were compiled into the fake driver, by name.
#pragma once

#include "shim.hpp"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace registry {

struct Kernel {
  std::string name;
  unsigned threads_max = 0;
  std::vector<size_t> argument_bytes;
  void (*run)(const Kernel &, dim3 grid, dim3 block, size_t shared_bytes, uint64_t seed, char *const *arguments) = nullptr;
  size_t dynamic_shared_max = 48 << 10;
};

inline std::map<std::string, Kernel> &kernels() {
  static std::map<std::string, Kernel> all;
  return all;
}

template <auto Function>
struct Entry;

template <class... A, void (*Function)(A...)>
struct Entry<Function> {
  static void run(const Kernel &kernel, dim3 grid, dim3 block, size_t shared_bytes, uint64_t seed, char *const *arguments) {
    auto call = [&]<size_t... I>(std::index_sequence<I...>) {
      // Threads get copies: a kernel may change its arguments.
      std::tuple<A...> values(*(A *)arguments[I]...);
      auto body = [&values] { std::apply([](A... value) { Function(value...); }, values); };
      shim::run_grid(kernel.name.c_str(), grid, block, shared_bytes, seed, body);
    };
    call(std::index_sequence_for<A...>{});
  }

  Entry(const char *name, unsigned threads_max) {
    Kernel kernel;
    kernel.name = name, kernel.threads_max = threads_max, kernel.run = run;
    kernel.argument_bytes = {sizeof(A)...};
    kernels()[name] = kernel;
  }
};

}  // namespace registry

#define REGISTER(name, threads) static registry::Entry<&name> register_##name{#name, threads};
