// What the tuner asks of the world around it: a place for records, somebody to tell, and memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "autotune/record.h"

namespace sparse_autotune {

struct Event {
  enum class Kind : uint8_t {
    kStart,     // a race begins: signature, description, device
    kProgress,  // fraction, variant
    kFinish,    // signature, record
    kMissed,    // not remembered and not to be raced now: signature, description, device,
                // device_class, problem, selector
    kWarning,   // signature, text
  };
  Kind kind = Kind::kStart;
  std::string signature = {};
  std::string description = {};  // of the problem, for people
  std::string device = {};       // its name
  std::string device_class = {};
  std::string problem = {};   // see problem_text.h
  std::string selector = {};  // the family that the call was limited to; empty: none
  double fraction = 0;        // of the race, 0 to 1
  std::string variant = {};   // under test now
  Record record = {};
  std::string text = {};
};

// Called on a miss or in need only, from any thread. During a race other races wait, and nobody
// else: no other lock of the tuner's is held.
// Implementations do not throw.
class Host {
 public:
  virtual ~Host() = default;
  // The text of a record, or nullopt when there is none.
  virtual std::optional<std::string> load(const std::string& device_class,
                                          const std::string& signature) = 0;
  // Whether this process may race for a signature that has no record; where another one does, this
  // waits for it, and a record may be there afterwards.
  virtual bool may_race(const std::string&, const std::string&) { return true; }
  virtual void save(const std::string& device_class, const std::string& signature,
                    const std::string& text) = 0;
  // False, told of progress: the race is to stop.
  virtual bool report(const Event& event) = 0;
  // A device is out of memory: what is kept there without use may be given back. Also for plans.
  virtual void reclaim(int ordinal) = 0;
  // In a forked child: whatever locks other threads held are to be free.
  virtual void after_fork() {}
};

// The host in use; never null. Without set_host() it keeps records in memory, knows those of the
// bundle file that SPARSE_AUTOTUNE_BUNDLE names (read once), and writes to stderr unless
// SPARSE_AUTOTUNE_VERBOSE is 0.
std::shared_ptr<Host> host();
// Null brings the default host back.
void set_host(std::shared_ptr<Host> replacement);
// Whether one was given.
bool has_host();

// A line to stderr, of events that are worth one.
void print(const Event& event);

// Makes the lock usable in a forked child.
void host_after_fork();

}  // namespace sparse_autotune
