// Scales of neighbouring columns, which the kernel for products that are added reads.

DEVICE void load_shared_pair(u32 address, float& first, float& second) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(first), "=f"(second) : "r"(address) : "memory");
}
