// How C++ failures become a status and this thread's message.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "sparse_autotune.h"

namespace sparse_autotune {

// A rule of the C interface is broken. The text names argument, rule and value.
class Broken : public std::exception {
 public:
  Broken(sparse_autotune_status status, std::string text)
      : status_(status), text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }
  sparse_autotune_status status() const { return status_; }

 private:
  sparse_autotune_status status_;
  std::string text_;
};

// "product.bias must ..., got ...".
[[noreturn]] void break_rule(const std::string& argument, const std::string& rule);
template <typename Value>
void require(bool holds, const char* argument, const char* rule, Value value) {
  if (!holds) break_rule(argument, rule + (", got " + std::to_string(value)));
}

// The status of the exception that is being handled, which becomes this thread's message.
sparse_autotune_status status_of_exception() noexcept;

// What `call` does, as a status. Nothing that it throws gets out.
template <typename Call>
sparse_autotune_status guarded_call(Call&& call) noexcept {
  try {
    call();
    return SPARSE_AUTOTUNE_OK;
  } catch (...) {
    return status_of_exception();
  }
}

// The part of a C program's struct that we know; zero where its header was older. Refuses what we
// do not know unless it is zero.
void read_struct(const void* given, size_t first_size, size_t our_size, const char* name,
                 void* out);
template <typename Struct>
Struct read_struct(const Struct* given, const char* name) {
  Struct out{};
  read_struct(given, sizeof(Struct), sizeof(Struct), name, &out);
  return out;
}
// The other way round, for structs that we fill.
template <typename Struct>
void write_struct(Struct filled, Struct* out, const char* name) {
  const size_t size = read_struct(out, name).struct_size;
  filled.struct_size = size;
  std::memcpy(out, &filled, std::min(size, sizeof(Struct)));
}

template <typename Handle>
Handle& checked(Handle* handle, const char* name) {
  if (handle == nullptr) break_rule(name, "must not be null");
  return *handle;
}

}  // namespace sparse_autotune
