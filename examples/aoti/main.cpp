// Runs the package that export.py wrote, without Python, for every batch size stored beside it, and
// compares the results element by element.
//
//     program LIBRARY PACKAGE EXPECTED
//
// LIBRARY is libsparse_autotune.so, PACKAGE the .pt2 and EXPECTED the tensors saved beside it.
// Exits with 0 when every element is within its bound.
#include <ATen/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

// Nothing of the library is called by name: loading it registers the operators with PyTorch.
void load_operators(const char* library) {
  if (dlopen(library, RTLD_NOW | RTLD_GLOBAL) == nullptr) throw std::runtime_error(dlerror());
}

// For each batch size the input, the result in fp64 and the error bound of each element.
std::vector<at::Tensor> load_expected(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(std::string("cannot read ") + path);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const c10::IValue loaded = torch::jit::pickle_load(bytes);
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& one : loaded.toListRef()) tensors.push_back(one.toTensor());
  if (tensors.empty() || tensors.size() % 3 != 0) {
    throw std::runtime_error(std::string(path) + " must hold three tensors for each batch size");
  }
  return tensors;
}

bool check(const at::Tensor& y, const at::Tensor& expected, const at::Tensor& bound) {
  if (y.sizes() != expected.sizes()) throw std::runtime_error("the result has the wrong shape");
  const at::Tensor result = y.to(at::kCPU, at::kDouble);
  const at::Tensor error = result.sub(expected).abs();
  const bool right = error.le(bound).all().item<bool>();  // false for NaN
  std::printf("batch %lld: checksum %.9g, expected %.9g, largest error / bound %.3g: %s\n",
              static_cast<long long>(y.size(0)), result.sum().item<double>(),
              expected.sum().item<double>(), error.div(bound).max().item<double>(),
              right ? "ok" : "WRONG");
  return right;
}

int run(const char* library, const char* package, const char* expected_path) {
  load_operators(library);  // before the package, whose loader looks the operators up
  const c10::InferenceMode no_gradients;
  torch::inductor::AOTIModelPackageLoader model(package);
  const std::string device = model.get_metadata().at("AOTI_DEVICE_KEY");
  const std::vector<at::Tensor> expected = load_expected(expected_path);
  bool right = true;
  for (size_t i = 0; i < expected.size(); i += 3) {
    const std::vector<at::Tensor> y = model.run({expected[i].to(at::Device(device))});
    right &= check(y.at(0), expected[i + 1], expected[i + 2]);
  }
  return right ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::fprintf(stderr, "usage: %s LIBRARY PACKAGE EXPECTED\n", arguments[0]);
    return 2;
  }
  try {
    return run(arguments[1], arguments[2], arguments[3]);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
