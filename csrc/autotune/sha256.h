// SHA-256 (FIPS 180-4), by which Python and we name an environment alike.
#pragma once

#include <string>
#include <string_view>

namespace sparse_autotune {

// 64 hexadecimal digits.
std::string sha256(std::string_view bytes);

}  // namespace sparse_autotune
