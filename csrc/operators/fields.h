// A problem as text and back, by a table of its members: words "key=value", each value a name or a
// whole number.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "variant.h"

namespace sparse_autotune {

constexpr int64_t kMaxSize = int64_t{1} << 40;  // of a number in a problem's text

// A member: how its value is written, and read back; false for what is none.
template <typename Problem>
struct Field {
  std::string key;
  std::string (*write)(const Problem&);
  bool (*read)(std::string_view, Problem*);
};

namespace detail {

template <typename Problem, typename Value>
Problem owner_of(Value Problem::*);

inline bool parse_number(std::string_view text, int64_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace detail

template <auto member>
using OwnerOf = decltype(detail::owner_of(member));

// An int64_t of at least `least`.
template <auto member, int64_t least>
Field<OwnerOf<member>> number_field(const char* key) {
  using Problem = OwnerOf<member>;
  return {key, [](const Problem& p) { return std::to_string(p.*member); },
          [](std::string_view text, Problem* p) {
            int64_t number = 0;
            if (!detail::parse_number(text, &number)) return false;
            p->*member = number;
            return number >= least && number <= kMaxSize;
          }};
}

// A bool, as 0 or 1.
template <auto member>
Field<OwnerOf<member>> flag_field(const char* key) {
  using Problem = OwnerOf<member>;
  return {key, [](const Problem& p) { return std::string(p.*member ? "1" : "0"); },
          [](std::string_view text, Problem* p) {
            p->*member = text == "1";
            return text == "0" || text == "1";
          }};
}

// A uint8_t that is a power of two up to 16.
template <auto member>
Field<OwnerOf<member>> alignment_field(const char* key) {
  using Problem = OwnerOf<member>;
  return {key, [](const Problem& p) { return std::to_string(p.*member); },
          [](std::string_view text, Problem* p) {
            int64_t number = 0;
            if (!detail::parse_number(text, &number)) return false;
            p->*member = static_cast<uint8_t>(number);
            return number == 1 || number == 2 || number == 4 || number == 8 || number == 16;
          }};
}

// An enumeration with these values, whose names `name` knows.
template <auto member, auto name, auto... values>
Field<OwnerOf<member>> name_field(const char* key) {
  using Problem = OwnerOf<member>;
  return {key, [](const Problem& p) { return std::string(name(p.*member)); },
          [](std::string_view text, Problem* p) {
            return ((text == name(values) && (p->*member = values, true)) || ...);
          }};
}

// Those that problems of every operator may have.
template <auto member>
Field<OwnerOf<member>> device_field() {
  constexpr auto name = [](DeviceType d) { return d == DeviceType::kCpu ? "cpu" : "cuda"; };
  return name_field<member, name, DeviceType::kCpu, DeviceType::kCuda>("device");
}
template <auto member>
Field<OwnerOf<member>> dtype_field(const char* key = "dtype") {
  constexpr auto name = [](DType d) { return short_name(d); };
  return name_field<member, name, DType::kFloat16, DType::kBFloat16, DType::kFloat32,
                    DType::kFloat64>(key);
}
template <auto member>
Field<OwnerOf<member>> index_field() {
  constexpr auto name = [](IndexType t) { return t == IndexType::kInt32 ? "i32" : "i64"; };
  return name_field<member, name, IndexType::kInt32, IndexType::kInt64>("index");
}

template <typename Problem>
class Fields {
 public:
  Fields(std::initializer_list<Field<Problem>> fields) : fields_(fields) {}

  std::string text(const Problem& p) const {
    std::string s;
    for (const auto& field : fields_) {
      s += (s.empty() ? "" : " ") + field.key + "=" + field.write(p);
    }
    return s;
  }

  // nullopt, and why, unless each field is there once, and nothing else.
  std::optional<Problem> parse(std::string_view text, std::string* why) const {
    Problem p{};
    std::vector<const Field<Problem>*> seen;
    while (!text.empty()) {
      const std::string_view word = text.substr(0, text.find(' '));
      text.remove_prefix(std::min(word.size() + 1, text.size()));
      const size_t at = word.find('=');
      const auto field = std::find_if(fields_.begin(), fields_.end(), [&](const auto& f) {
        return at != std::string_view::npos && f.key == word.substr(0, at);
      });
      const bool known = field != fields_.end() && field->read(word.substr(at + 1), &p);
      if (!known || std::find(seen.begin(), seen.end(), &*field) != seen.end()) {
        *why = "'" + std::string(word.substr(0, 60)) + "' says nothing of a problem";
        return std::nullopt;
      }
      seen.push_back(&*field);
    }
    if (seen.size() == fields_.size()) return p;
    *why = "some of a problem's fields are missing";
    return std::nullopt;
  }

 private:
  std::vector<Field<Problem>> fields_;
};

}  // namespace sparse_autotune
