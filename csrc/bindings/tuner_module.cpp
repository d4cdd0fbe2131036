// _tuner: the torch-free autotuner for Python. It holds no state: that is in the operator library.
//
// Every function gives up the GIL before it may take a lock: operators run without the GIL and may
// hold that lock while they wait for it.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>

#include "autotune/api.h"
#include "bindings/direct_operator.h"
#include "bindings/eager.h"
#include "bindings/launcher_binding.h"
#include "bindings/operands.h"

namespace py = pybind11;

namespace sparse_autotune {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

template <typename Call>
auto without_gil(Call call) {
  const py::gil_scoped_release no_gil;
  return call();
}

const char* name_of(Mode mode) {
  switch (mode) {
    case Mode::kOn:
      return "on";
    case Mode::kOff:
      return "off";
    case Mode::kReadonly:
      return "readonly";
    case Mode::kRecord:
      return "record";
  }
  return "";
}

Mode mode_named(const std::string& name) {
  for (const Mode mode : {Mode::kOn, Mode::kOff, Mode::kReadonly, Mode::kRecord}) {
    if (name == name_of(mode)) return mode;
  }
  throw py::value_error("mode must be on, off, readonly or record, got '" + name + "'");
}

const char* name_of(Timing timing) { return timing == Timing::kCold ? "cold" : "warm"; }

Timing timing_named(const std::string& name) {
  if (name == "cold") return Timing::kCold;
  if (name == "warm") return Timing::kWarm;
  throw py::value_error("timing must be cold or warm, got '" + name + "'");
}

py::dict to_dict(const Record& r) {
  py::list entrants;
  for (const Entrant& e : r.entrants) {
    py::dict entry;
    entry["name"] = e.name;
    entry["status"] = api::outcome_name(e.outcome);
    entry["reason"] = e.reason;
    entry["median_us"] = e.median_us;
    entry["spread_us"] = e.spread_us;
    entry["samples"] = e.samples;
    entry["error"] = e.error;
    entry["memory_bytes"] = e.memory_bytes;
    entrants.append(entry);
  }
  py::dict d;
  d["signature"] = r.signature;
  d["device_class"] = r.device_class;
  d["device"] = r.device;
  d["failure"] = r.failure;
  d["seconds"] = r.seconds;
  d["limit_us"] = r.limit_us;
  d["description"] = r.description;
  d["winner"] = r.winner;
  d["when"] = r.when;
  d["timing"] = name_of(r.timing);
  d["nnz_flops"] = r.nnz_flops;
  d["dense_flops"] = r.dense_flops;
  d["bytes"] = r.bytes;
  d["entrants"] = entrants;
  return d;
}

py::dict to_dict(const Event& e) {
  py::dict d;
  switch (e.kind) {
    case Event::Kind::kStart:
      d["kind"] = "start";
      d["signature"] = e.signature;
      d["description"] = e.description;
      d["device"] = e.device;
      break;
    case Event::Kind::kProgress:
      d["kind"] = "progress";
      d["fraction"] = e.fraction;
      d["variant"] = e.variant;
      break;
    case Event::Kind::kFinish:
      d["kind"] = "finish";
      d["signature"] = e.signature;
      d["record"] = api::text_of(e.record);
      break;
    case Event::Kind::kMissed:
      d["kind"] = "missed";
      d["signature"] = e.signature;
      d["description"] = e.description;
      break;
    case Event::Kind::kWarning:
      d["kind"] = "warning";
      d["text"] = e.text;
      break;
  }
  return d;
}

// Python callables held by C++ threads: the last reference must be dropped with the GIL.
struct Callbacks {
  py::function load, save, report, reclaim;
};
std::shared_ptr<Callbacks> keep(Callbacks callbacks) {
  return std::shared_ptr<Callbacks>(new Callbacks(std::move(callbacks)), [](Callbacks* last) {
    const py::gil_scoped_acquire gil;
    delete last;
  });
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

// A callback that raises must not end a product: it is reported as Python reports such things.
template <typename Call>
auto shielded(Call call) -> decltype(call()) {
  const py::gil_scoped_acquire gil;
  const Within within(in_callback);
  try {
    return call();
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception) && PyThread_get_thread_ident() == main_thread) {
      raise_after_the_race(error.value());
    } else {
      error.discard_as_unraisable("sparse_autotune host");
    }
  } catch (const py::cast_error&) {
    PyErr_SetString(PyExc_TypeError, "the sparse_autotune host returned something else than text");
    PyErr_WriteUnraisable(nullptr);
  }
  return decltype(call())();
}

void install_host(py::function load, py::function save, py::function report, py::function reclaim) {
  main_thread =
      py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
  const auto callbacks =
      keep({std::move(load), std::move(save), std::move(report), std::move(reclaim)});
  api::HostFunctions functions;
  functions.load = [callbacks](const std::string& device_class, const std::string& signature) {
    return shielded([&]() -> std::optional<std::string> {
      return callbacks->load(device_class, signature).cast<std::optional<std::string>>();
    });
  };
  functions.save = [callbacks](const std::string& device_class, const std::string& signature,
                               const std::string& text) {
    shielded([&] { callbacks->save(device_class, signature, text); });
  };
  functions.report = [callbacks](const Event& event) {
    const py::gil_scoped_acquire gil;
    shielded([&] { callbacks->report(to_dict(event)); });
    return interruption == nullptr || PyThread_get_thread_ident() != main_thread;
  };
  functions.reclaim = [callbacks](int ordinal) { shielded([&] { callbacks->reclaim(ordinal); }); };
  without_gil([&] { api::install_host(std::move(functions)); });
}

void apply_settings(const std::string& mode, double budget_s, const std::string& timing,
                    int64_t plan_bytes, int64_t frozen_bytes, int64_t tuning_bytes,
                    bool exact_nonfinite, const std::optional<std::string>& variant) {
  Settings s;
  s.mode = mode_named(mode);
  s.budget_s = budget_s;
  s.timing = timing_named(timing);
  s.plan_bytes = plan_bytes;
  s.frozen_bytes = frozen_bytes;
  s.tuning_bytes = tuning_bytes;
  s.exact_nonfinite = exact_nonfinite;
  s.variant = variant.value_or("");
  without_gil([&] { api::set_settings(s); });
}

py::dict settings_in_force() {
  const Settings s = without_gil(api::get_settings);
  py::dict d;
  d["mode"] = name_of(s.mode);
  d["budget_s"] = s.budget_s;
  d["timing"] = name_of(s.timing);
  d["plan_bytes"] = s.plan_bytes;
  d["frozen_bytes"] = s.frozen_bytes;
  d["tuning_bytes"] = s.tuning_bytes;
  d["exact_nonfinite"] = s.exact_nonfinite;
  d["variant"] = s.variant.empty() ? py::object(py::none()) : py::object(py::str(s.variant));
  return d;
}

py::list variants() {
  py::list list;
  for (const api::VariantInfo& v : without_gil(api::variants)) {
    py::dict d;
    d["name"] = v.name;
    d["family"] = v.family;
    d["device"] = v.device == DeviceType::kCpu ? "cpu" : "cuda";
    d["op"] = v.op;
    d["deterministic"] = v.deterministic;
    d["multiplies_padding"] = v.multiplies_padding;
    list.append(d);
  }
  return list;
}

py::dict build_facts() {
  const BuildInfo info = api::build();
  py::dict d;
  d["version"] = info.version;
  d["cuda"] = info.cuda;
  d["cuda_version"] = info.cuda_version;
  d["cuda_reason"] = info.cuda_reason;
  d["architectures"] = info.architectures;
  d["kernel_hash"] = info.kernel_hash;
  d["built_with_torch"] = info.built_with_torch;
  d["compiler"] = info.compiler;
  return d;
}

py::dict device_info(int ordinal, int threads) {
  const Device v = without_gil([&] { return api::device(ordinal, threads); });
  py::dict d;
  d["name"] = v.name;
  d["unavailable"] = v.unavailable;
  d["compute_capability"] = v.compute_capability;
  d["multiprocessors"] = v.multiprocessors;
  d["memory_bytes"] = v.memory_bytes;
  d["isa"] = v.type == DeviceType::kCpu ? api::isa_name(v.isa) : "";
  d["amx_refused"] = v.amx_refused;
  d["threads"] = v.threads;
  return d;
}

py::list libraries() {
  py::list list;
  for (const api::LibraryInfo& library : without_gil(api::libraries)) {
    py::dict d;
    d["name"] = library.name;
    d["version"] = library.version;
    d["unavailable"] = library.unavailable;
    list.append(d);
  }
  return list;
}

py::dict memory(int ordinal) {
  const api::Memory m = without_gil([&] { return api::memory(ordinal); });
  py::dict d;
  d["plans"] = m.plans;
  d["plan_bytes"] = m.plan_bytes;
  d["frozen_bytes"] = m.frozen_bytes;
  d["pool_used"] = m.pool_used;
  d["pool_reserved"] = m.pool_reserved;
  return d;
}

py::dict record_of(const std::string& text) {
  std::string why;
  const std::optional<Record> record = api::parse(text, &why);
  if (!record) throw py::value_error("not a record of a race: " + why);
  return to_dict(*record);
}

const void* pointer(uintptr_t address) { return reinterpret_cast<const void*>(address); }

template <void (*kCall)(const void*, const void*)>
void of_indices(uintptr_t crow_indices, uintptr_t col_indices) {
  kCall(pointer(crow_indices), pointer(col_indices));
}

void drop_frozen(uintptr_t crow_indices, uintptr_t col_indices, uintptr_t values) {
  api::drop_frozen(pointer(crow_indices), pointer(col_indices), pointer(values));
}

}  // namespace

PYBIND11_MODULE(_tuner, m) {
  m.doc() = "The torch-free autotuner of sparse_autotune.";
  m.def("install_host", &install_host, py::arg("load"), py::arg("save"), py::arg("report"),
        py::arg("reclaim"));
  m.def("remove_host", &api::remove_host, NoGil());
  m.def("set_settings", &apply_settings, py::kw_only(), py::arg("mode"), py::arg("budget_s"),
        py::arg("timing"), py::arg("plan_bytes"), py::arg("frozen_bytes"), py::arg("tuning_bytes"),
        py::arg("exact_nonfinite"), py::arg("variant"));
  m.def("get_settings", &settings_in_force);
  m.def("tuning_count", &api::tuning_count, NoGil());
  m.def("parse_record", &record_of, py::arg("text"));
  m.def("known", &api::known_records, NoGil());
  m.def("forget", &api::forget_records, NoGil());
  m.def("variants", &variants);
  m.def("build_info", &build_facts);
  m.def("device_info", &device_info, py::arg("ordinal"), py::arg("threads") = 1);
  m.def("environment", &api::environment, py::arg("ordinal"), NoGil());
  m.def("libraries", &libraries);
  bind_eager(m);
  bind_operands(m);
  bind_launcher(m);
  bind_direct_operators(m);
  m.def("memory", &memory, py::arg("ordinal") = -1);
  m.def("drop_plan", &of_indices<api::drop_plan>, py::arg("crow_indices"), py::arg("col_indices"),
        NoGil());
  m.def("own_indices", &of_indices<api::own_indices>, py::arg("crow_indices"),
        py::arg("col_indices"), NoGil());
  m.def("disown_indices", &of_indices<api::disown_indices>, py::arg("crow_indices"),
        py::arg("col_indices"), NoGil());
  m.def("drop_frozen", &drop_frozen, py::arg("crow_indices"), py::arg("col_indices"),
        py::arg("values"), NoGil());
}

}  // namespace sparse_autotune
