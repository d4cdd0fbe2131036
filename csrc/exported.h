// What one of our shared objects shows to the others. Everything else is hidden in its own.
#pragma once

#define SPARSE_AUTOTUNE_API __attribute__((visibility("default")))
