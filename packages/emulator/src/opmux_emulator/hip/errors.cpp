// Error codes: names, texts, the last one of each thread, and the one that the next synchronising call returns.
#include "runtime.h"
#include <cstdarg>
#include <cstdio>

std::recursive_mutex everything;

namespace {
struct Named {
  int code;
  const char *name, *text;
};
const Named NAMES[] = {
    {0, "hipSuccess", "no error"},
    {1, "hipErrorInvalidValue", "invalid argument"},
    {2, "hipErrorOutOfMemory", "out of memory"},
    {3, "hipErrorNotInitialized", "not initialized"},
    {4, "hipErrorDeinitialized", "deinitialized"},
    {9, "hipErrorInvalidConfiguration", "invalid launch configuration"},
    {12, "hipErrorInvalidPitchValue", "invalid pitch"},
    {13, "hipErrorInvalidSymbol", "no such device symbol"},
    {17, "hipErrorInvalidDevicePointer", "invalid device pointer"},
    {21, "hipErrorInvalidMemcpyDirection", "invalid direction of a copy"},
    {35, "hipErrorInsufficientDriver", "the driver is older than the runtime library"},
    {52, "hipErrorMissingConfiguration", "a launch without a configuration"},
    {53, "hipErrorPriorLaunchFailure", "an earlier launch failed"},
    {98, "hipErrorInvalidDeviceFunction", "invalid device function"},
    {100, "hipErrorNoDevice", "no device"},
    {101, "hipErrorInvalidDevice", "no such device"},
    {200, "hipErrorInvalidImage", "invalid code object"},
    {201, "hipErrorInvalidContext", "invalid context"},
    {209, "hipErrorNoBinaryForGpu", "no code object for this device"},
    {300, "hipErrorInvalidSource", "invalid source"},
    {301, "hipErrorFileNotFound", "file not found"},
    {302, "hipErrorSharedObjectSymbolNotFound", "symbol not found in a shared object"},
    {303, "hipErrorSharedObjectInitFailed", "a shared object failed to initialise"},
    {304, "hipErrorOperatingSystem", "the operating system refused"},
    {400, "hipErrorInvalidHandle", "invalid handle"},
    {401, "hipErrorIllegalState", "illegal state"},
    {500, "hipErrorNotFound", "not found"},
    {600, "hipErrorNotReady", "not ready"},
    {700, "hipErrorIllegalAddress", "a kernel accessed memory outside the allocations"},
    {701, "hipErrorLaunchOutOfResources", "too few resources for the launch"},
    {702, "hipErrorLaunchTimeOut", "a kernel did not end"},
    {704, "hipErrorPeerAccessAlreadyEnabled", "peer access is enabled already"},
    {705, "hipErrorPeerAccessNotEnabled", "peer access is not enabled"},
    {710, "hipErrorAssert", "an assertion failed on the device"},
    {712, "hipErrorHostMemoryAlreadyRegistered", "host memory is registered already"},
    {713, "hipErrorHostMemoryNotRegistered", "host memory is not registered"},
    {719, "hipErrorLaunchFailure", "a kernel broke a rule"},
    {720, "hipErrorCooperativeLaunchTooLarge", "too many workgroups for a cooperative launch"},
    {801, "hipErrorNotSupported", "not supported"},
    {900, "hipErrorStreamCaptureUnsupported", "not permitted while a stream is captured"},
    {999, "hipErrorUnknown", "unknown error"},
};
const Named* named(int code) {
  for (const Named& n : NAMES)
    if (n.code == code) return &n;
  return nullptr;
}
thread_local Error last = hipSuccess, described = hipSuccess;
thread_local std::string description, shown;
Error pending = hipSuccess;
std::string pending_text;

Error remember(Error code, std::string text) {
  const Named* n = named(code);
  last = described = code;
  description = std::string(n ? n->text : "error") + ": " + std::move(text);
  return code;
}
}  // namespace

Error fail(Error code, const char* format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return remember(code, text);
}
Error launch_failed(Error code, const std::string& text) {
  pending = code;
  pending_text = text;
  return remember(code, text);
}
Error take_pending() {
  Error code = pending;
  pending = hipSuccess;
  return code ? remember(code, pending_text) : hipSuccess;
}

EXPORT Error hipGetLastError() {
  Guard lock(everything);
  Error code = last;
  last = hipSuccess;
  pending = hipSuccess;
  return code;
}
EXPORT Error hipPeekAtLastError() { return last; }
EXPORT Error hipExtGetLastError() { return hipGetLastError(); }
EXPORT const char* hipGetErrorName(Error code) {
  const Named* n = named(code);
  return n ? n->name : "hipErrorUnknown";
}
// The code in words; where it is this thread's last failure, with what exactly was wrong.
EXPORT const char* hipGetErrorString(Error code) {
  if (code != hipSuccess && code == described) {
    shown = description;
    return shown.c_str();
  }
  const Named* n = named(code);
  return n ? n->text : "unknown error";
}
EXPORT Error hipDrvGetErrorName(Error code, const char** out) {
  *out = hipGetErrorName(code);
  return named(code) ? hipSuccess : hipErrorInvalidValue;
}
EXPORT Error hipDrvGetErrorString(Error code, const char** out) {
  *out = hipGetErrorString(code);
  return named(code) ? hipSuccess : hipErrorInvalidValue;
}
