// The version of HIP whose names hip_runtime.h beside this file declares; CK takes workarounds out by it.
#pragma once
#define HIP_VERSION_MAJOR 7
#define HIP_VERSION_MINOR 1
#define HIP_VERSION_PATCH 0
#define HIP_VERSION 70100000
