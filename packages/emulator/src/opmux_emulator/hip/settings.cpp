// What the library was told (OPMUX_HIP, opmuxHipPlay), and the devices that it can play.
#include "runtime.h"
#include <cstdlib>
#include <sstream>

namespace {
// Units, clocks, memory and caches as the data sheets of MI250X (one die), MI300X and MI355X give them; nothing runs at
// these speeds here.
const Device DEVICES[] = {
    {"gfx90a", "opmux emulator (gfx90a)", "gfx90a:sramecc+:xnack-", 64ull << 30, 65536, 110, 1700000, 1600000, 4096,
     8 << 20, 0, 1},
    {"gfx942", "opmux emulator (gfx942)", "gfx942:sramecc+:xnack-", 192ull << 30, 65536, 304, 2100000, 1300000, 8192,
     4 << 20, 4, 8},
    {"gfx950", "opmux emulator (gfx950)", "gfx950:sramecc+:xnack-", 288ull << 30, 163840, 256, 2400000, 2000000, 8192,
     4 << 20, 5, 8},
};
const Device* find(const std::string& arch) {
  for (const Device& d : DEVICES)
    if (arch == d.arch) return &d;
  return nullptr;
}
// Words with spaces between: an arch, `pageable`, `python=...`; the rest is for the service.
bool parse(const std::string& text, Settings& out, std::string& wrong) {
  std::istringstream words(text);
  std::string word;
  out.text = text;
  while (words >> word) {
    if (word == "pageable") out.pageable = true;
    else if (word.rfind("python=", 0) == 0) out.python = word.substr(7);
    else if (word.rfind("report=", 0) == 0 || word.rfind("ignore=", 0) == 0 || word.rfind("limit=", 0) == 0) continue;
    else if (find(word)) out.arch = word;
    else {
      wrong = word;
      return false;
    }
  }
  return true;
}
Settings current;
bool read = false;
}  // namespace

const Settings& settings() {
  if (!read) {
    read = true;
    std::string wrong;
    const char* text = getenv("OPMUX_HIP");
    if (text && !parse(text, current, wrong)) {
      fprintf(stderr,
              "opmux: OPMUX_HIP: expected gfx90a, gfx942 or gfx950, pageable, report=FILE, ignore=RULE,RULE, limit=N, "
              "python=PATH; got %s\n",
              wrong.c_str());
      current.arch.clear();
    }
  }
  return current;
}
const Device& device() {
  const Device* d = find(settings().arch);
  return d ? *d : DEVICES[1];
}

// Sets what OPMUX_HIP would: "gfx950", "gfx942 report=run.jsonl". What was loaded before stays as it is.
EXPORT Error opmuxHipPlay(const char* text) {
  Guard lock(everything);
  Settings wanted;
  std::string wrong;
  if (!text || !parse(text, wanted, wrong))
    return fail(hipErrorInvalidValue,
                "opmuxHipPlay: expected gfx90a, gfx942 or gfx950, pageable, report=FILE, ignore=RULE,RULE, limit=N, "
                "python=PATH; got %s",
                text ? wrong.c_str() : "null");
  setenv("OPMUX_HIP", text, 1);
  current = wanted;
  read = true;
  return hipSuccess;
}
EXPORT const char* opmuxHipSettings() {
  Guard lock(everything);
  static std::string kept;
  kept = settings().text;
  return kept.c_str();
}  // what is played now, as opmuxHipPlay takes it
EXPORT const char* opmuxHipArch() { return device().arch; }
