// CK includes this header and uses clang's own 16-bit types instead.
#pragma once
#include <hip/hip_runtime.h>
