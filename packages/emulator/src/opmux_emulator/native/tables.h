// The tables of operations: which mnemonic is run by which function. Each unit has one; run.cpp joins them.
#pragma once
#include "machine.h"

std::vector<Op> scalar_ops();
std::vector<Op> control_ops();
std::vector<Op> scalar_memory_ops();
std::vector<Op> lane_ops();
std::vector<Op> conversion_ops();
std::vector<Op> small_float_ops();
std::vector<Op> float_ops();
std::vector<Op> division_ops();
std::vector<Op> integer_ops();
std::vector<Op> comparison_ops();
std::vector<Op> packed_ops();
std::vector<Op> matrix_ops();
std::vector<Op> memory_ops();
std::vector<Op> memory_atomic_ops();
std::vector<Op> lds_ops();
std::vector<Op> lds_lane_ops();
