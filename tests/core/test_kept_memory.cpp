// Kept memory of a GPU: freed behind its last use, shared with graphs, and what happens where calls
// of the CUDA runtime fail. The runtime is a fake that writes down what it is told to do.
#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fakes.h"
#include "plan/kept_memory.h"
#include "plan/memory_pool.h"

struct FakeStream {
  std::string name;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  FakeGraph* graph = nullptr;
};
struct FakeEvent {
  std::string on;  // the stream that it was recorded on
  bool reached = false;
};
struct FakeObject {
  void* data;
  cudaHostFn_t destroy;
};
struct FakeGraph {
  std::vector<FakeObject*> objects;
  ~FakeGraph() {
    for (FakeObject* object : objects) cudaUserObjectRelease(object, 1);
  }
};

namespace {

std::vector<std::string> done;  // by the runtime and the pool, in order
std::set<std::string> failing;  // calls
cudaError_t last_error = cudaSuccess;

std::string name(cudaStream_t stream) { return stream == nullptr ? "default" : stream->name; }

bool fails(const char* call) {
  if (failing.count(call) == 0) return false;
  last_error = cudaErrorUnknown;
  return true;
}

// What was done since the last question.
std::vector<std::string> taken() { return std::exchange(done, {}); }

}  // namespace

#define FAIL_IF_TOLD_TO \
  if (fails(__func__)) return cudaErrorUnknown

const char* cudaGetErrorString(cudaError_t) { return "planted"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorUnknown"; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  FAIL_IF_TOLD_TO;
  static FakeStream freeing{"freeing"};
  *stream = &freeing;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream == nullptr ? cudaStreamCaptureStatusNone : stream->capture;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long*, cudaGraph_t* graph, const void*,
                                     const void*, void*) {
  FAIL_IF_TOLD_TO;
  *status = stream->capture;
  *graph = stream->graph;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  FAIL_IF_TOLD_TO;
  done.push_back(name(stream) + " waits for " + event->on);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  FAIL_IF_TOLD_TO;
  done.push_back("thread waits for " + name(stream));
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  FAIL_IF_TOLD_TO;
  *event = new FakeEvent;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  FAIL_IF_TOLD_TO;
  event->on = name(stream);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  FAIL_IF_TOLD_TO;
  return event->reached ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  FAIL_IF_TOLD_TO;
  event->reached = true;
  done.push_back("thread waits for " + event->on);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* data, cudaHostFn_t destroy,
                                 unsigned, unsigned) {
  FAIL_IF_TOLD_TO;
  *object = new FakeObject{data, destroy};
  return cudaSuccess;
}
cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned) {
  object->destroy(object->data);
  return delete object, cudaSuccess;
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned,
                                      unsigned) {
  FAIL_IF_TOLD_TO;
  graph->objects.push_back(object);
  return cudaSuccess;
}

namespace sparse_autotune {

Status pool_allocate(int, int64_t bytes, void*, void** memory) {
  *memory = std::malloc(static_cast<size_t>(bytes));
  return Status::ok();
}
Status pool_require(int ordinal, int64_t bytes, void* stream, void** memory) {
  return pool_allocate(ordinal, bytes, stream, memory);
}
void pool_free(void* memory, void* stream) {
  std::free(memory);
  done.push_back("freed on " + name(static_cast<cudaStream_t>(stream)));
}

}  // namespace sparse_autotune

using namespace sparse_autotune;

namespace {

using Log = std::vector<std::string>;

std::shared_ptr<KeptMemory> make() {
  Device device;
  device.type = DeviceType::kCuda;
  device.ordinal = 0;
  Status status = Status::ok();
  auto memory = make_pattern_memory(device, 64, nullptr, &status);
  CHECK(status && memory != nullptr);
  return memory;
}

// What a call gives while those of the runtime fail; no error may be left for the next launch.
template <typename Call>
Status with_failing(std::set<std::string> calls, Call&& call) {
  failing = std::move(calls);
  Status status = call();
  failing.clear();
  CHECK(last_error == cudaSuccess);
  return status;
}

void it_is_freed_behind_its_uses() {
  FakeStream fill{"fill"}, read{"read"};
  auto memory = make();
  CHECK(memory->filled_by(&fill));
  CHECK(memory->ready_for(&read) && memory->used_by(&read));
  CHECK(memory->ready_for(nullptr) && memory->used_by(nullptr));
  CHECK((taken() == Log{"read waits for fill", "default waits for fill"}));
  memory.reset();
  CHECK((taken() == Log{"freeing waits for fill", "freeing waits for read",
                        "freeing waits for default", "freed on freeing"}));
}

void a_thread_waits_where_a_stream_cannot() {
  FakeStream fill{"fill"}, read{"read"};
  for (const char* call : {"cudaEventCreateWithFlags", "cudaEventRecord"}) {
    auto memory = make();
    CHECK(with_failing({call}, [&] { return memory->filled_by(&fill); }));
    CHECK((taken() == Log{"thread waits for fill"}));
    CHECK(memory->ready_for(&read) && taken().empty());
    CHECK(with_failing({call}, [&] { return memory->used_by(&read); }));
    CHECK((taken() == Log{"thread waits for read"}));
    const std::set<std::string> both = {call, "cudaStreamSynchronize"};
    CHECK(!with_failing(both, [&] { return memory->used_by(&read); }));
    CHECK(!with_failing(both, [&] { return memory->filled_by(&fill); }));
    CHECK(memory->used_by(&read) && taken().empty());
    memory.reset();
    CHECK((taken() == Log{"freeing waits for read", "freed on freeing"}));
  }
  auto memory = make();
  CHECK(memory->filled_by(&fill) && memory->used_by(&read));
  CHECK(with_failing({"cudaStreamWaitEvent"}, [&] { return memory.reset(), Status::ok(); }));
  CHECK((taken() == Log{"thread waits for fill", "thread waits for read", "freed on freeing"}));
}

void nothing_is_read_before_it_is_filled() {
  FakeStream fill{"fill"}, read{"read"};
  FakeGraph graph;
  FakeStream captured{"captured", cudaStreamCaptureStatusActive, &graph};
  auto memory = make();
  CHECK(memory->filled_by(&fill));
  for (const char* call : {"cudaEventQuery", "cudaStreamWaitEvent"}) {
    const Status status = with_failing({call}, [&] { return memory->ready_for(&read); });
    CHECK(!status && status.message().find("planted") != std::string::npos);
  }
  for (const char* call : {"cudaEventQuery", "cudaEventSynchronize"}) {
    CHECK(!with_failing({call}, [&] { return memory->ready_for(&captured); }));
  }
  CHECK(graph.objects.empty() && taken().empty());
  CHECK(memory->ready_for(&read));
  CHECK((taken() == Log{"read waits for fill"}));
  // A graph may be launched on any stream, behind which nobody knows what was enqueued.
  CHECK(memory->ready_for(&captured));
  CHECK((taken() == Log{"thread waits for fill"}));
  CHECK(memory->ready_for(&read) && taken().empty());
}

void a_graph_keeps_what_it_reads() {
  auto graph = std::make_unique<FakeGraph>();
  FakeStream captured{"captured", cudaStreamCaptureStatusActive, graph.get()};
  auto memory = make();
  CHECK(memory->ready_for(&captured) && memory->used_by(&captured));
  CHECK(graph->objects.size() == 1);
  memory.reset();
  make().reset();
  CHECK((taken() == Log{"freed on freeing"}));  // the other one
  graph.reset();
  CHECK(taken().empty());  // CUDA may not be called while it destroys a graph
  make().reset();
  CHECK((taken() == Log{"freed on freeing", "freed on freeing"}));
}

void nothing_is_captured_that_no_graph_keeps() {
  for (const char* call :
       {"cudaStreamGetCaptureInfo", "cudaUserObjectCreate", "cudaGraphRetainUserObject"}) {
    FakeGraph graph;
    FakeStream captured{"captured", cudaStreamCaptureStatusActive, &graph};
    auto memory = make();
    const Status status = with_failing({call}, [&] { return memory->ready_for(&captured); });
    CHECK(!status && status.message().find("planted") != std::string::npos);
    CHECK(graph.objects.empty());
    memory.reset();
    make().reset();
    CHECK((taken() == Log{"freed on freeing", "freed on freeing"}));  // nobody held a share
  }
  FakeGraph graph;
  FakeStream broken{"broken", cudaStreamCaptureStatusInvalidated, &graph};
  CHECK(!make()->ready_for(&broken));
  CHECK(graph.objects.empty());
}

class Counted final : public KeptMemory {
 public:
  explicit Counted(bool works) : works_(works) {}
  Status filled_by(void*) override { return Status::ok(); }
  Status ready_for(void*) override { return asked(&ready); }
  Status used_by(void*) override { return asked(&used); }
  int ready = 0, used = 0;

 private:
  Status asked(int* count) {
    ++*count;
    return works_ ? Status::ok() : Status::failed(StatusCode::kLaunchFailed, "planted");
  }
  const bool works_;
};

void of_several_memories_every_use_is_told() {
  Counted first(true), broken(false), last(true);
  CHECK(all_ready_for(nullptr, {&first, nullptr, &last}));
  CHECK(all_ready_for(nullptr, {&first, &broken, &last}).message() == "planted");
  CHECK(first.ready == 2 && broken.ready == 1 && last.ready == 1);
  CHECK(all_used_by(nullptr, {nullptr, &broken, &last}).message() == "planted");
  CHECK(last.used == 1);
}

}  // namespace

int main() {
  for (const auto test :
       {it_is_freed_behind_its_uses, a_thread_waits_where_a_stream_cannot,
        nothing_is_read_before_it_is_filled, a_graph_keeps_what_it_reads,
        nothing_is_captured_that_no_graph_keeps, of_several_memories_every_use_is_told}) {
    test();
    make().reset();  // and with it what the test's graphs have released
    taken();
  }
  std::printf("all passed\n");
}
