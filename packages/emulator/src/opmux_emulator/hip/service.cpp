// The process that reads code objects and words judgements: `python -m opmux_emulator.hip.service`, over a socket.
#include "runtime.h"
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace {
struct Service {
  int socket = -1;
  pid_t child = 0, owner = 0;
  std::string interpreter;
};
Service service;

bool send_all(const void* data, size_t size) {
  for (const char* p = (const char*)data; size;) {
    ssize_t n = send(service.socket, p, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n;
    size -= n;
  }
  return true;
}
bool receive_all(void* data, size_t size) {
  for (char* p = (char*)data; size;) {
    ssize_t n = recv(service.socket, p, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n;
    size -= n;
  }
  return true;
}
bool receive(Reply& reply) {
  u32 head[2];
  if (!receive_all(head, sizeof head)) return false;
  reply.status = (Error)head[0];
  reply.data.resize(head[1]);
  return receive_all(reply.data.data(), head[1]);
}
void stop() {
  if (service.socket >= 0) close(service.socket);
  if (service.child > 0 && service.owner == getpid())
    waitpid(service.child, nullptr, 0);  // it ends when its socket does
  service = Service();
}
// The child's end is the only descriptor that survives its exec, as number 3.
bool start(std::string& wrong) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) {
    wrong = strerror(errno);
    return false;
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  int far = ends[1] == 3 ? dup(ends[1]) : ends[1];  // dup2 onto itself would leave it closed on exec
  posix_spawn_file_actions_adddup2(&actions, far, 3);
  std::vector<std::string> kept;
  for (char** e = environ; *e; e++)
    if (strncmp(*e, "LD_PRELOAD=", 11)) kept.emplace_back(*e);
  std::vector<char*> environment;
  for (auto& e : kept) environment.push_back(e.data());
  environment.push_back(nullptr);
  std::string python = settings().python;
  const char* arguments[] = {python.c_str(), "-m", "opmux_emulator.hip.service", nullptr};
  int failed = posix_spawnp(&service.child, python.c_str(), &actions, nullptr, (char**)arguments, environment.data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (far != ends[1]) close(far);
  service.socket = ends[0];
  service.owner = getpid();
  Reply hello;
  if (failed || !receive(hello) || hello.status) {
    wrong = failed ? strerror(failed) : hello.data.empty() ? "it ended at once" : hello.text();
    if (failed) service.child = 0;
    stop();
    return false;
  }
  service.interpreter = hello.text();
  std::string theirs = hello.text();
  if (theirs != OPMUX_SOURCES) {
    wrong = "it is of another opmux-emulator than this library (its sources are " + theirs +
            ", this library's " OPMUX_SOURCES ")";
    stop();
    return false;
  }
  return true;
}
struct AtExit {
  ~AtExit() { stop(); }
} at_exit;
}  // namespace

Reply ask(Request request, const Message& message) {
  std::string wrong;
  Reply reply;
  if (service.socket >= 0 && service.owner != getpid()) {
    close(service.socket);
    service = Service();
  }  // a fork: the process belongs to the parent
  if (service.socket < 0 && !start(wrong)) {
    reply.status = hipErrorNotInitialized;
    reply.data = "the emulator's service cannot be started: " + settings().python +
                 " -m opmux_emulator.hip.service: " + wrong +
                 "; name a Python that has opmux-emulator: OPMUX_HIP=\"... python=PATH\"";
    return reply;
  }
  u32 head[2] = {request, (u32)message.data.size()};
  if (!send_all(head, sizeof head) || !send_all(message.data.data(), message.data.size()) || !receive(reply)) {
    stop();
    reply.status = hipErrorNotInitialized;
    reply.data = "the emulator's service ended";
  }
  return reply;
}
const std::string& interpreter_path() { return service.interpreter; }
