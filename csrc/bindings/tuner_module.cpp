// _tuner: the torch-free autotuner for Python. It holds no state: that is in the operator library.
//
// Every function gives up the GIL before it may take a lock: operators run without the GIL and may
// hold that lock while they wait for it.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "autotune/api.h"
#include "bindings/direct.h"
#include "operators/product/product_estimates.h"
#include "ops/registered.h"
#include "plan/mask_lists.h"

namespace py = pybind11;

namespace sparse_autotune {
namespace {

using namespace py::literals;
using WithoutGil = py::call_guard<py::gil_scoped_release>;

template <typename Call>
auto without_gil(Call call) {
  const py::gil_scoped_release no_gil;
  return call();
}

// In the order of the enumerations.
constexpr std::array kModes = {"on", "off", "readonly", "record"};
constexpr std::array kTimings = {"cold", "warm"};
constexpr std::array kBuckets = {"geometric", "exact"};
constexpr std::array kEvents = {"start", "progress", "finish", "missed", "warning"};
constexpr std::array kDevices = {"cpu", "cuda"};

template <typename Names, typename Enumeration>
const char* name_of(const Names& names, Enumeration value) {
  return names.at(static_cast<size_t>(value));
}

template <typename Enumeration, typename Names>
Enumeration named(const Names& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw py::value_error("no setting has the value '" + name + "'");
  return static_cast<Enumeration>(found - names.begin());
}

py::dict to_dict(const Entrant& e) {
  return py::dict("name"_a = e.name, "status"_a = api::outcome_name(e.outcome),
                  "reason"_a = e.reason, "expected_us"_a = e.expected_us,
                  "median_us"_a = e.median_us, "spread_us"_a = e.spread_us, "host_us"_a = e.host_us,
                  "samples"_a = e.samples, "error"_a = e.error, "memory_bytes"_a = e.memory_bytes,
                  "captures"_a = e.captures);
}

py::dict to_dict(const api::VariantInfo& v) {
  return py::dict("name"_a = v.name, "family"_a = v.family,
                  "device"_a = name_of(kDevices, v.device), "op"_a = v.op,
                  "deterministic"_a = v.deterministic,
                  "multiplies_padding"_a = v.multiplies_padding);
}

py::dict to_dict(const api::LibraryInfo& library) {
  return py::dict("name"_a = library.name, "version"_a = library.version,
                  "unavailable"_a = library.unavailable);
}

template <typename Things>
py::list list_of(const Things& things) {
  py::list list;
  for (const auto& thing : things) list.append(to_dict(thing));
  return list;
}

py::dict to_dict(const Record& r) {
  return py::dict(
      "signature"_a = r.signature, "device_class"_a = r.device_class,
      "environment"_a = r.environment, "device"_a = r.device, "failure"_a = r.failure,
      "seconds"_a = r.seconds, "peak_tflops"_a = r.peak_tflops, "peak_gbps"_a = r.peak_gbps,
      "description"_a = r.description, "winner"_a = r.winner,
      "captured_winner"_a = r.captured_winner.empty() ? r.winner : r.captured_winner,
      "when"_a = r.when, "timing"_a = name_of(kTimings, r.timing), "nnz_flops"_a = r.nnz_flops,
      "dense_flops"_a = r.dense_flops, "bytes"_a = r.bytes, "entrants"_a = list_of(r.entrants));
}

// What a kind of event does not tell is empty or 0.
py::dict to_dict(const Event& e) {
  const bool finished = e.kind == Event::Kind::kFinish;
  return py::dict("kind"_a = name_of(kEvents, e.kind), "signature"_a = e.signature,
                  "description"_a = e.description, "device"_a = e.device,
                  "device_class"_a = e.device_class, "problem"_a = e.problem,
                  "selector"_a = e.selector, "fraction"_a = e.fraction, "variant"_a = e.variant,
                  "record"_a = finished ? api::text_of(e.record) : "", "text"_a = e.text);
}

// What Python's handlers of signals raise in a callback to end a computation, as for Ctrl-C. It
// stops the race and is raised again, in the main thread as it was, when the product has returned.
PyObject* interruption = nullptr;
unsigned long main_thread = 0;
thread_local bool in_callback = false;

int raise_interruption(void*) {
  if (in_callback) return Py_AddPendingCall(raise_interruption, nullptr);
  const auto raised = py::reinterpret_steal<py::object>(std::exchange(interruption, nullptr));
  if (!raised) return 0;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(raised.ptr())), raised.ptr());
  return -1;
}

void raise_after_the_race(const py::object& raised) {
  if (interruption != nullptr) return;
  interruption = raised.inc_ref().ptr();
  Py_AddPendingCall(raise_interruption, nullptr);
}

// Callbacks do not nest.
struct Within {
  explicit Within(bool& flag) : flag(flag) { flag = true; }
  ~Within() { flag = false; }
  bool& flag;
};

// A callback that raises must not end a product: it is reported as Python reports such things, and
// returns nothing. The callables, with their last copy too, take the GIL themselves.
template <typename Result, typename... Arguments>
std::function<Result(Arguments...)> shielded(std::function<Result(Arguments...)> call) {
  return [call = std::move(call)](Arguments... arguments) {
    const py::gil_scoped_acquire gil;
    const Within within(in_callback);
    try {
      return call(arguments...);
    } catch (py::error_already_set& error) {
      if (!error.matches(PyExc_Exception) && PyThread_get_thread_ident() == main_thread) {
        raise_after_the_race(error.value());
      } else {
        error.discard_as_unraisable("sparse_autotune host");
      }
    } catch (const py::cast_error&) {
      PyErr_SetString(PyExc_TypeError,
                      "the sparse_autotune host returned something else than text");
      PyErr_WriteUnraisable(nullptr);
    }
    return Result();
  };
}

void install_host(
    std::function<std::optional<std::string>(const std::string&, const std::string&)> load,
    std::function<void(const std::string&, const std::string&, const std::string&)> save,
    std::function<void(const py::dict&)> report, std::function<void(int)> reclaim,
    std::function<bool(const std::string&, const std::string&)> may_race) {
  main_thread =
      py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
  if (!may_race) may_race = [](const std::string&, const std::string&) { return true; };
  api::HostFunctions functions{.load = shielded(std::move(load)),
                               .may_race = shielded(std::move(may_race)),
                               .save = shielded(std::move(save)),
                               .report = {},
                               .reclaim = shielded(std::move(reclaim))};
  functions.report = [report = shielded(std::move(report))](const Event& event) {
    const py::gil_scoped_acquire gil;
    report(to_dict(event));
    return interruption == nullptr || PyThread_get_thread_ident() != main_thread;
  };
  without_gil([&] { api::install_host(std::move(functions)); });
}

void apply_settings(const py::kwargs& v) {
  const Settings s = {.mode = named<Mode>(kModes, v["mode"].cast<std::string>()),
                      .budget_s = v["budget_s"].cast<double>(),
                      .timing = named<Timing>(kTimings, v["timing"].cast<std::string>()),
                      .buckets = named<Buckets>(kBuckets, v["buckets"].cast<std::string>()),
                      .min_speedup = v["min_speedup"].cast<double>(),
                      .plan_bytes = v["plan_bytes"].cast<int64_t>(),
                      .frozen_bytes = v["frozen_bytes"].cast<int64_t>(),
                      .tuning_bytes = v["tuning_bytes"].cast<int64_t>(),
                      .exact_nonfinite = v["exact_nonfinite"].cast<bool>(),
                      .variant = v["variant"].cast<std::optional<std::string>>().value_or("")};
  without_gil([&] { api::set_settings(s); });
}

py::dict settings_in_force() {
  const Settings s = without_gil(api::get_settings);
  const auto variant = s.variant.empty() ? std::nullopt : std::optional(s.variant);
  return py::dict("mode"_a = name_of(kModes, s.mode), "budget_s"_a = s.budget_s,
                  "timing"_a = name_of(kTimings, s.timing),
                  "buckets"_a = name_of(kBuckets, s.buckets), "min_speedup"_a = s.min_speedup,
                  "plan_bytes"_a = s.plan_bytes, "frozen_bytes"_a = s.frozen_bytes,
                  "tuning_bytes"_a = s.tuning_bytes, "exact_nonfinite"_a = s.exact_nonfinite,
                  "variant"_a = variant);
}

py::dict build_facts() {
  const BuildInfo info = api::build();
  return py::dict("version"_a = info.version, "cuda"_a = info.cuda,
                  "cuda_version"_a = info.cuda_version, "cuda_reason"_a = info.cuda_reason,
                  "architectures"_a = info.architectures, "kernel_hash"_a = info.kernel_hash,
                  "built_with_torch"_a = info.built_with_torch, "compiler"_a = info.compiler);
}

py::dict device_info(int ordinal, int threads) {
  const Device v = without_gil([&] { return api::device(ordinal, threads); });
  const std::string isa = v.type == DeviceType::kCpu ? api::isa_name(v.isa) : "";
  return py::dict("name"_a = v.name, "device_class"_a = api::class_of(v),
                  "unavailable"_a = v.unavailable, "compute_capability"_a = v.compute_capability,
                  "multiprocessors"_a = v.multiprocessors, "memory_bytes"_a = v.memory_bytes,
                  "l2_bytes"_a = v.l2_bytes,
                  "shared_memory_per_block"_a = v.shared_memory_per_block,
                  "memory_gbps"_a = v.memory_gbps, "l2_gbps"_a = v.l2_gbps, "isa"_a = isa,
                  "amx_refused"_a = v.amx_refused, "threads"_a = v.threads);
}

py::dict memory(int ordinal) {
  const api::Memory m = without_gil([&] { return api::memory(ordinal); });
  return py::dict("plans"_a = m.plans, "plan_bytes"_a = m.plan_bytes,
                  "frozen_bytes"_a = m.frozen_bytes, "pool_used"_a = m.pool_used,
                  "pool_reserved"_a = m.pool_reserved);
}

py::dict record_of(const std::string& text) {
  std::string why;
  const std::optional<Record> record = api::parse(text, &why);
  if (!record) throw py::value_error("not a record of a race: " + why);
  return to_dict(*record);
}

void register_variant(std::string name, std::string dispatched, const std::string& device,
                      std::string op, bool deterministic, bool multiplies_padding, bool captures,
                      std::function<std::string(const std::string&)> refusal,
                      std::function<std::string()> failure) {
  api::RegisteredVariant variant = {.name = std::move(name),
                                    .dispatched = std::move(dispatched),
                                    .device = named<DeviceType>(kDevices, device),
                                    .op = std::move(op),
                                    .deterministic = deterministic,
                                    .multiplies_padding = multiplies_padding,
                                    .captures = captures,
                                    .refusal = std::move(refusal),
                                    .failure = std::move(failure)};
  without_gil([&] { api::register_variant(std::move(variant)); });
}

void check_problem(const std::string& text) {
  const std::string why = api::fault_of_problem(text);
  if (!why.empty()) throw py::value_error("not a problem: " + why);
}

// `facts`: of the pattern, by the names of Problem's members; `gpu`: those of GpuFacts.
py::dict estimates(const std::string& problem, const py::dict& facts, const py::dict& gpu,
                   const std::vector<std::string>& variants) {
  const auto fill = [&](const char* name, auto& to) {
    const auto from = facts[name].cast<std::vector<int32_t>>();
    if (from.size() != std::size(to)) throw py::value_error(std::string(name) + ": wrong length");
    std::copy(from.begin(), from.end(), std::begin(to));
  };
  RowCuts cuts{};
  fill("cut_rows", cuts.rows);
  fill("cut_parts", cuts.parts);
  GroupCounts groups{};
  fill("group_columns", groups.columns);
  fill("group_longest", groups.longest);
  const GpuFacts g = {
      .compute_capability = gpu["compute_capability"].cast<int>(),
      .multiprocessors = gpu["multiprocessors"].cast<int>(),
      .l2_bytes = gpu["l2_bytes"].cast<int64_t>(),
      .shared_memory_per_block = gpu["shared_memory_per_block"].cast<int64_t>(),
      .memory_bytes = gpu["memory_bytes"].cast<int64_t>(),
      .memory_gbps = gpu["memory_gbps"].cast<double>(),
      .l2_gbps = gpu["l2_gbps"].cast<double>(),
  };
  const std::vector<double> us =
      without_gil([&] { return product_estimates(problem, cuts, groups, g, variants); });
  py::dict found;
  for (size_t i = 0; i < us.size(); ++i) found[py::str(variants[i])] = us[i];
  return found;
}

const void* pointer(uintptr_t address) { return reinterpret_cast<const void*>(address); }

// A rule as the operator mask_of_rule takes it, and how many documents end where `ends` is.
std::pair<int64_t, bool> count_mask(const std::array<int64_t, 10>& r, int64_t patterns,
                                    uintptr_t ends) {
  const auto rule = sound({r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8] != 0, r[9],
                           static_cast<const int64_t*>(pointer(ends))});
  if (!rule) throw py::value_error("not a rule of a mask");
  const BlockCount found = count_blocks(*rule, patterns);
  return {found.blocks, found.is_exact};
}

}  // namespace

PYBIND11_MODULE(_tuner, m) {
  m.doc() = "The torch-free autotuner of sparse_autotune.";
  m.def("install_host", &install_host, "load"_a, "save"_a, "report"_a, "reclaim"_a,
        "may_race"_a = py::none());
  m.def("remove_host", &api::remove_host, WithoutGil());
  m.def("set_settings", &apply_settings);
  m.def("get_settings", &settings_in_force);
  m.def("tuning_count", &api::tuning_count, WithoutGil());
  m.def("parse_record", &record_of, "text"_a);
  m.def("check_problem", &check_problem, "text"_a);
  m.def("count_mask", &count_mask, "rule"_a, "patterns"_a, "ends"_a);
  m.def("estimates", &estimates, "problem"_a, "facts"_a, "gpu"_a, "variants"_a);
  m.def("known", &api::known_records, WithoutGil());
  m.def("missed", &api::missed_signatures, WithoutGil());
  m.def("forget", &api::forget_records, WithoutGil());
  m.def("register_variant", &register_variant, "name"_a, py::kw_only(), "dispatched"_a, "device"_a,
        "op"_a, "deterministic"_a, "multiplies_padding"_a, "captures"_a, "refusal"_a, "failure"_a);
  m.def("unregister_variant", &api::unregister_variant, "name"_a, WithoutGil());
  m.def("variants", [] { return list_of(without_gil(api::variants)); });
  m.def("open_directory", &api::open_directory, "path"_a, "create"_a, WithoutGil());
  m.def("build_info", &build_facts);
  m.def("device_info", &device_info, "ordinal"_a, "threads"_a = 1);
  m.def("environment", &api::environment, "ordinal"_a, WithoutGil());
  m.def("libraries", [] { return list_of(without_gil(api::libraries)); });
  bind_direct_calls(m);
  m.def("memory", &memory, "ordinal"_a = -1);
  using OfIndices = void(const void* crow_indices, const void* col_indices);
  for (const auto& [name, call] : std::initializer_list<std::pair<const char*, OfIndices*>>{
           {"drop_plan", api::drop_plan},
           {"own_indices", api::own_indices},
           {"disown_indices", api::disown_indices}}) {
    m.def(
        name, [call = call](uintptr_t crow, uintptr_t col) { call(pointer(crow), pointer(col)); },
        "crow_indices"_a, "col_indices"_a, WithoutGil());
  }
  m.def(
      "drop_frozen",
      [](uintptr_t crow, uintptr_t col, uintptr_t values) {
        api::drop_frozen(pointer(crow), pointer(col), pointer(values));
      },
      "crow_indices"_a, "col_indices"_a, "values"_a, WithoutGil());
}

}  // namespace sparse_autotune
