// Where things lie in shared memory and in the matrix unit's registers.
// Sources: CUDA driver API, "CUtensorMapSwizzle"; PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout",
// "Matrix Descriptor Format", "Register Fragments for wgmma.mma_async".

// The place of a byte in a swizzled tile whose rows are WIDTH bytes: 16-byte chunks change places within a row by bits
// of the row's number. The tile begins at a multiple of 8 * WIDTH bytes.
template <int WIDTH>
DEVICE u32 swizzled(u32 offset) {
  static_assert(WIDTH == 128 || WIDTH == 64 || WIDTH == 32);
  return offset ^ ((offset >> 3) & (WIDTH - 16));
}

// The descriptor of an operand whose rows are 128 bytes of k, in the 128-byte swizzle: eight rows follow each other
// every 1024 bytes. The address may be advanced along k within the first row.
DEVICE u64 descriptor(u32 address) {
  constexpr u64 SWIZZLE_128_BYTES = 1ull << 62, EIGHT_ROWS = (u64)(1024 >> 4) << 32, UNUSED = 1ull << 16;
  return SWIZZLE_128_BYTES | EIGHT_ROWS | UNUSED | ((address & 0x3FFFF) >> 4);
}

// The descriptor of an operand whose rows are 64 columns of it, 128 bytes, in the 128-byte swizzle: k runs down, eight
// rows follow each other every 1024 bytes, and the next 64 columns lie so many bytes further on.
DEVICE u64 across_descriptor(u32 address, u32 chunk) {
  return (descriptor(address) & ~(0x3FFFull << 16)) | (u64)(chunk >> 4) << 16;
}

// The descriptor of the same operand so many bytes further on.
DEVICE u64 advanced(u64 descriptor, u32 bytes) { return descriptor + (bytes >> 4); }

// What a thread holds of a 64 x n result of the matrix unit: values 4j and 4j+1 of row `fragment_row`, columns
// 8j + `fragment_column` and the next; values 4j+2 and 4j+3 of the same columns, eight rows below.
DEVICE u32 fragment_row(u32 thread) { return thread % 128 / 32 * 16 + thread % 32 / 4; }

DEVICE u32 fragment_column(u32 thread) { return thread % 4 * 2; }
