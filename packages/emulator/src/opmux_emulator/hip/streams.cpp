// Streams and events. Work is done when it is asked for, so every stream is empty and every recorded event is reached.
#include "runtime.h"
#include <chrono>
#include <set>

namespace {
struct Stream {
  unsigned flags;
  int priority;
};
struct Event {
  bool recorded = false;
  std::chrono::steady_clock::time_point at;
  unsigned flags;
};
std::set<void*> streams, events;
bool is_special(void* stream) { return (u64)stream <= 2; }  // null, hipStreamLegacy, hipStreamPerThread

Error check_event(const char* call, void* event) {
  return events.count(event)
             ? hipSuccess
             : fail(hipErrorInvalidHandle, "%s: %p is no event of this library, or was destroyed", call, event);
}
Error make_event(const char* call, void** out, unsigned flags) {
  if (!out) return fail(hipErrorInvalidValue, "%s: expected an address for the event, got null", call);
  Event* e = new Event();
  e->flags = flags;
  events.insert(e);
  *out = e;
  return hipSuccess;
}
Error make_stream(const char* call, void** out, unsigned flags, int priority) {
  if (!out) return fail(hipErrorInvalidValue, "%s: expected an address for the stream, got null", call);
  *out = new Stream{flags, priority};
  streams.insert(*out);
  return hipSuccess;
}
}  // namespace

Error check_stream(void* stream) {
  return is_special(stream) || streams.count(stream)
             ? hipSuccess
             : fail(hipErrorInvalidHandle, "%p is no stream of this library, or was destroyed", stream);
}
void record_event(void* event) {
  if (!events.count(event)) return;
  ((Event*)event)->recorded = true;
  ((Event*)event)->at = std::chrono::steady_clock::now();
}

EXPORT Error hipStreamCreate(void** out) {
  Guard lock(everything);
  return make_stream("hipStreamCreate", out, 0, 0);
}
EXPORT Error hipStreamCreateWithFlags(void** out, unsigned flags) {
  Guard lock(everything);
  return make_stream("hipStreamCreateWithFlags", out, flags, 0);
}
EXPORT Error hipStreamCreateWithPriority(void** out, unsigned flags, int priority) {
  Guard lock(everything);
  return make_stream("hipStreamCreateWithPriority", out, flags, priority);
}
EXPORT Error hipStreamDestroy(void* stream) {
  Guard lock(everything);
  if (!streams.erase(stream))
    return fail(hipErrorInvalidHandle, "hipStreamDestroy: %p is no stream of this library, or was destroyed", stream);
  delete (Stream*)stream;
  return hipSuccess;
}
EXPORT Error hipStreamSynchronize(void* stream) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  return take_pending();
}
EXPORT Error hipStreamQuery(void* stream) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  return take_pending();
}
EXPORT Error hipStreamWaitEvent(void* stream, void* event, unsigned) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  return check_event("hipStreamWaitEvent", event);
}
EXPORT Error hipStreamGetFlags(void* stream, unsigned* flags) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  *flags = is_special(stream) ? 0 : ((Stream*)stream)->flags;
  return hipSuccess;
}
EXPORT Error hipStreamGetPriority(void* stream, int* priority) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  *priority = is_special(stream) ? 0 : ((Stream*)stream)->priority;
  return hipSuccess;
}
EXPORT Error hipStreamGetDevice(void* stream, int* device) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  *device = 0;
  return hipSuccess;
}
EXPORT Error hipStreamIsCapturing(void* stream, int* status) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  *status = 0;
  return hipSuccess;
}
EXPORT Error hipStreamGetCaptureInfo(void* stream, int* status, unsigned long long* id) {
  Guard lock(everything);
  if (Error e = check_stream(stream)) return e;
  *status = 0;
  if (id) *id = 0;
  return hipSuccess;
}
EXPORT Error hipThreadExchangeStreamCaptureMode(int*) { return hipSuccess; }
EXPORT Error hipStreamBeginCapture(void*, int) {
  return fail(hipErrorNotSupported, "hipStreamBeginCapture: the emulator captures no graphs: launch eagerly");
}
EXPORT Error hipStreamAddCallback(void* stream, void (*callback)(void*, Error, void*), void* data, unsigned) {
  {
    Guard lock(everything);
    if (Error e = check_stream(stream)) return e;
  }
  callback(stream, hipSuccess, data);
  return hipSuccess;
}
EXPORT Error hipLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  {
    Guard lock(everything);
    if (Error e = check_stream(stream)) return e;
  }
  function(data);
  return hipSuccess;
}

EXPORT Error hipEventCreate(void** out) {
  Guard lock(everything);
  return make_event("hipEventCreate", out, 0);
}
EXPORT Error hipEventCreateWithFlags(void** out, unsigned flags) {
  Guard lock(everything);
  return make_event("hipEventCreateWithFlags", out, flags);
}
EXPORT Error hipEventDestroy(void* event) {
  Guard lock(everything);
  if (Error e = check_event("hipEventDestroy", event)) return e;
  events.erase(event);
  delete (Event*)event;
  return hipSuccess;
}
EXPORT Error hipEventRecord(void* event, void* stream) {
  Guard lock(everything);
  if (Error e = check_event("hipEventRecord", event)) return e;
  if (Error e = check_stream(stream)) return e;
  record_event(event);
  return hipSuccess;
}
EXPORT Error hipEventRecordWithFlags(void* event, void* stream, unsigned) { return hipEventRecord(event, stream); }
EXPORT Error hipEventSynchronize(void* event) {
  Guard lock(everything);
  if (Error e = check_event("hipEventSynchronize", event)) return e;
  return take_pending();
}
EXPORT Error hipEventQuery(void* event) {
  Guard lock(everything);
  return check_event("hipEventQuery", event);
}
// Milliseconds of the host's clock between two events: how long the emulation took, not what a device would need.
EXPORT Error hipEventElapsedTime(float* out, void* start, void* stop) {
  Guard lock(everything);
  if (Error e = check_event("hipEventElapsedTime", start)) return e;
  if (Error e = check_event("hipEventElapsedTime", stop)) return e;
  Event *a = (Event*)start, *b = (Event*)stop;
  if (!out || !a->recorded || !b->recorded)
    return fail(hipErrorInvalidHandle, "hipEventElapsedTime: an event was not recorded");
  *out = std::chrono::duration<float, std::milli>(b->at - a->at).count();
  return hipSuccess;
}
