#include "c_api/status.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

#include "autotune/build_info.h"
#include "calls/call.h"

namespace sparse_autotune {
namespace {

// Of no allocation: it has to hold what is said when there is no memory.
thread_local char message[4096] = "";

void say(const char* text) {
  constexpr char kOurs[] = "sparse_autotune: ";
  if (std::strncmp(text, kOurs, sizeof(kOurs) - 1) == 0) text += sizeof(kOurs) - 1;
  std::snprintf(message, sizeof(message), "%s", text);
}

sparse_autotune_status status_of(Fault fault) {
  switch (fault) {
    case Fault::kCall:
      return SPARSE_AUTOTUNE_INVALID_ARGUMENT;
    case Fault::kPattern:
      return SPARSE_AUTOTUNE_INVALID_PATTERN;
    case Fault::kVariant:
      return SPARSE_AUTOTUNE_UNSUPPORTED;
    case Fault::kMemory:
      return SPARSE_AUTOTUNE_OUT_OF_MEMORY;
    case Fault::kLaunch:
      return SPARSE_AUTOTUNE_FAILED;
  }
  return SPARSE_AUTOTUNE_FAILED;
}

}  // namespace

void break_rule(const std::string& argument, const std::string& rule) {
  throw Broken(SPARSE_AUTOTUNE_INVALID_ARGUMENT, argument + " " + rule);
}

sparse_autotune_status status_of_exception() noexcept {
  try {
    throw;
  } catch (const Broken& broken) {
    say(broken.what());
    return broken.status();
  } catch (const Refusal& refusal) {
    say(refusal.what());
    return status_of(refusal.fault());
  } catch (const std::bad_alloc&) {
    say("no host memory is left");
    return SPARSE_AUTOTUNE_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    say(error.what());
  } catch (...) {
    say("an unknown failure");
  }
  return SPARSE_AUTOTUNE_FAILED;
}

void read_struct(const void* given, size_t first_size, size_t our_size, const char* name,
                 void* out) {
  if (given == nullptr) break_rule(name, "must not be null");
  // No struct of ours will ever be so large: what says so was not initialised.
  constexpr size_t kMost = 4096;
  size_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (size < first_size || size > kMost) {
    break_rule(std::string(name) + ".struct_size",
               "must be what SPARSE_AUTOTUNE_INIT sets, got " + std::to_string(size));
  }
  const char* bytes = static_cast<const char*>(given);
  if (std::any_of(bytes + std::min(size, our_size), bytes + size, [](char c) { return c != 0; })) {
    break_rule(name, "has members that this version, " + std::string(build_info().version) +
                         ", does not know, and they are not zero");
  }
  std::memcpy(out, given, std::min(size, our_size));
}

}  // namespace sparse_autotune

using sparse_autotune::build_info;

uint32_t sparse_autotune_abi_version(void) { return SPARSE_AUTOTUNE_ABI_VERSION; }

const char* sparse_autotune_version(void) { return build_info().version; }

const char* sparse_autotune_error_message(void) { return sparse_autotune::message; }

const char* sparse_autotune_status_name(sparse_autotune_status status) {
  switch (status) {
    case SPARSE_AUTOTUNE_OK:
      return "ok";
    case SPARSE_AUTOTUNE_INVALID_ARGUMENT:
      return "invalid argument";
    case SPARSE_AUTOTUNE_INVALID_PATTERN:
      return "invalid pattern";
    case SPARSE_AUTOTUNE_UNSUPPORTED:
      return "unsupported";
    case SPARSE_AUTOTUNE_OUT_OF_MEMORY:
      return "out of memory";
    case SPARSE_AUTOTUNE_WORKSPACE_TOO_SMALL:
      return "workspace too small";
    case SPARSE_AUTOTUNE_NO_DEVICE:
      return "no device";
    case SPARSE_AUTOTUNE_IO:
      return "input or output failed";
    case SPARSE_AUTOTUNE_FAILED:
      return "failed";
    default:
      return "unknown status";
  }
}
