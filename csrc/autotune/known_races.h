// What this process knows of races, by their signatures.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autotune/record.h"
#include "autotune/settings.h"
#include "autotune/tuner.h"
#include "plan/validity.h"
#include "variant.h"

namespace sparse_autotune {

struct RaceKey {
  std::string device_class, signature;
  std::string joined() const { return device_class + "\n" + signature; }
};

struct KnownRecord {
  std::shared_ptr<const Record> record;  // null: none
  Validity validity;                     // of what is decided from it, or from there being none
};

KnownRecord remembered(const RaceKey& key);
void remember(const RaceKey& key, const Record& record);
// From the host's store into memory.
void load_record(const RaceKey& key);
// The next load asks the host although it had nothing: it may have it by now.
void ask_again(const RaceKey& key);
// What memory or else the host's store has of the signature; null: nothing.
std::shared_ptr<const Record> known_record(const RaceKey& key);

// Counts a miss that is not to race. Whether it is the first of its signature to be told of.
bool count_miss(const RaceKey& key, Mode mode);

// What was decided for the signature stands no longer.
void note_failed_launch(const RaceKey& key, const AnyVariant& variant);
// Those that did not fail to launch on a problem of that signature.
std::vector<const AnyVariant*> not_demoted(const RaceKey& key,
                                           std::vector<const AnyVariant*> entrants);

// What a record decided, all variants that are legal having been found in it.
struct Settled {
  uint64_t generation = 0;  // of the settings and variants then
  Choice choice;
};

// `kind` is the signature with the number of columns itself: problems with patterns of one kind.
void settle(const RaceKey& key, const std::string& kind, const Settled& decided);
std::optional<Settled> settled_before(const RaceKey& key, const std::string& kind);

// One thread's claim to race a signature, which ends with it whatever happens to the race.
class Ticket {
 public:
  explicit Ticket(const RaceKey& key);
  ~Ticket();
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  bool mine() const { return mine_; }  // no other thread had it

 private:
  std::string key_;
  bool mine_;
};

// The records in memory, as (device class, text).
std::vector<std::pair<std::string, std::string>> known_records();
// The signatures that calls met without a record and without racing, in the modes that say so.
std::vector<std::string> missed_signatures();
// Forgets both, so that the next miss asks the host again.
void forget_records();

// Makes the lock usable in a forked child, where none of the threads that raced lives on.
void known_races_after_fork();

}  // namespace sparse_autotune
