// Streams, events and graphs: when work runs.
#include "state.hpp"

using namespace fake;

namespace {

bool is_blocked(const Stream &stream) {
  const Item &item = stream.items.front();
  return item.waits_for && item.waits_for->done < item.record;
}

void run_one(Stream &stream) {
  Item item = std::move(stream.items.front());
  stream.items.pop_front();
  if (item.work) item.work();
}

}  // namespace

namespace fake {

int run_until(Stream *wanted, const std::function<bool()> &done) {
  while (!done()) {
    std::vector<Stream *> ready, needed;
    auto consider = [&](Stream *stream) {
      if (!stream->items.empty() && !is_blocked(*stream)) ready.push_back(stream);
    };
    consider(&null_stream);
    for (Stream *stream : streams) consider(stream);
    if (ready.empty()) {
      fprintf(stderr, "fake cuda: a wait for work that was never given\n");
      abort();
    }
    Stream *next = ready[next_random() % ready.size()];
    if (wanted && !wanted->items.empty() && !is_blocked(*wanted) && next_random() % 4) next = wanted;
    run_one(*next);
  }
  return sticky;
}

int run_stream(Stream *stream) {
  return run_until(stream, [stream] { return stream->items.empty(); });
}

int run_all() {
  return run_until(nullptr, [] {
    for (Stream *stream : streams)
      if (!stream->items.empty()) return false;
    return null_stream.items.empty();
  });
}

int submit(void *handle, Work work) {
  if (sticky) return sticky;
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  if (stream->capture) stream->capture->work.push_back(std::move(work));
  else stream->items.push_back({std::move(work), nullptr, 0});
  return SUCCESS;
}

int refuse_in_capture() {
  if (!capturing_here) return SUCCESS;
  capturing_here->invalid = true;
  return CAPTURE_UNSUPPORTED;
}

}  // namespace fake

int fake_cuda_enqueue(void *stream, std::function<void()> *work) {
  Lock held;
  return submit(stream, *work);
}

API int cuCtxSynchronize() {
  Lock held;
  if (int code = refuse_in_capture()) return code;
  return run_all();
}

API int cuStreamCreate(void **stream, unsigned) {
  Lock held;
  if (int code = refuse_in_capture()) return code;
  Stream *made = new Stream;
  streams.insert(made);
  *stream = made;
  return SUCCESS;
}
API int cuStreamCreateWithPriority(void **stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }
API int cuStreamDestroy_v2(void *handle) {
  Lock held;
  Stream *stream = stream_of(handle);
  if (!stream || stream == &null_stream) return INVALID_HANDLE;
  run_stream(stream);
  streams.erase(stream);
  delete stream;
  return SUCCESS;
}
API int cuStreamSynchronize(void *handle) {
  Lock held;
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  if (stream->capture) {
    stream->capture->invalid = true;
    return CAPTURE_UNSUPPORTED;
  }
  return run_stream(stream);
}
API int cuStreamQuery(void *handle) {
  Lock held;
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  if (sticky || stream->items.empty()) return sticky;
  // Who asks again and again gets an answer in the end.
  if (next_random() % 8 == 0) run_stream(stream);
  return NOT_READY;
}
API int cuStreamWaitEvent(void *handle, void *event, unsigned) {
  Lock held;
  Stream *stream = stream_of(handle);
  auto found = events.find(event);
  if (!stream || found == events.end()) return INVALID_HANDLE;
  if (found->second->captured_by) {
    // The stream joins the capture; the order of recording is an order of the graph.
    stream->capture = found->second->captured_by;
    return SUCCESS;
  }
  if (stream->capture) return SUCCESS;
  stream->items.push_back({nullptr, found->second, found->second->recorded});
  return SUCCESS;
}

API int cuEventCreate(void **event, unsigned) {
  Lock held;
  auto made = std::make_shared<Event>();
  *event = made.get();
  events[*event] = made;
  return SUCCESS;
}
API int cuEventDestroy_v2(void *event) {
  Lock held;
  return events.erase(event) ? SUCCESS : INVALID_HANDLE;
}
API int cuEventRecord(void *handle, void *stream_handle) {
  Lock held;
  auto found = events.find(handle);
  Stream *stream = stream_of(stream_handle);
  if (!stream || found == events.end()) return INVALID_HANDLE;
  std::shared_ptr<Event> event = found->second;
  if (stream->capture) {
    event->captured_by = stream->capture;
    return SUCCESS;
  }
  event->captured_by = nullptr;
  uint64_t record = ++event->recorded;
  return submit(stream_handle, [event, record] {
    event->done = record;
    event->at = std::chrono::steady_clock::now();
  });
}
API int cuEventSynchronize(void *handle) {
  Lock held;
  auto found = events.find(handle);
  if (found == events.end()) return INVALID_HANDLE;
  std::shared_ptr<Event> event = found->second;
  uint64_t record = event->recorded;
  return run_until(nullptr, [=] { return event->done >= record; });
}
API int cuEventQuery(void *handle) {
  Lock held;
  auto found = events.find(handle);
  if (found == events.end()) return INVALID_HANDLE;
  std::shared_ptr<Event> event = found->second;
  if (sticky || event->done >= event->recorded) return sticky;
  if (next_random() % 8 == 0) cuEventSynchronize(handle);
  return NOT_READY;
}
API int cuEventElapsedTime_v2(float *ms, void *start, void *end) {
  Lock held;
  if (!events.count(start) || !events.count(end)) return INVALID_HANDLE;
  *ms = std::chrono::duration<float, std::milli>(events[end]->at - events[start]->at).count();
  return SUCCESS;
}
API int cuEventElapsedTime(float *ms, void *start, void *end) { return cuEventElapsedTime_v2(ms, start, end); }

API int cuLaunchHostFunc(void *stream, void (*function)(void *), void *argument) {
  Lock held;
  return submit(stream, [=] { function(argument); });
}

API int cuStreamIsCapturing(void *handle, int *status) {
  Lock held;
  Stream *stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  *status = !stream->capture ? 0 : stream->capture->invalid ? 2 : 1;
  return SUCCESS;
}
API int cuStreamBeginCapture_v2(void *handle, int) {
  Lock held;
  Stream *stream = stream_of(handle);
  // The default stream cannot be captured.
  if (!stream || stream == &null_stream || stream->capture) return CAPTURE_UNSUPPORTED;
  capturing_here = stream->capture = new Graph;
  stream->began_capture = true;
  return SUCCESS;
}
API int cuStreamEndCapture(void *handle, void **graph) {
  Lock held;
  Stream *stream = stream_of(handle);
  *graph = nullptr;
  if (!stream || !stream->capture || !stream->began_capture) return CAPTURE_UNSUPPORTED;
  Graph *made = stream->capture;
  for (Stream *other : streams)
    if (other->capture == made) other->capture = nullptr;
  stream->began_capture = false;
  capturing_here = nullptr;
  if (made->invalid) {
    delete made;
    return CAPTURE_INVALIDATED;
  }
  *graph = made;
  return SUCCESS;
}
API int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long) {
  Lock held;
  *executable = new Graph(*(Graph *)graph);
  return SUCCESS;
}
API int cuGraphUpload(void *, void *) { return SUCCESS; }
API int cuGraphLaunch(void *executable, void *stream) {
  Lock held;
  // Copies of the work: the executable may be gone when it runs.
  for (const Work &work : ((Graph *)executable)->work)
    if (int code = submit(stream, work)) return code;
  return SUCCESS;
}
API int cuGraphExecDestroy(void *executable) {
  delete (Graph *)executable;
  return SUCCESS;
}
API int cuGraphDestroy(void *graph) {
  delete (Graph *)graph;
  return SUCCESS;
}

