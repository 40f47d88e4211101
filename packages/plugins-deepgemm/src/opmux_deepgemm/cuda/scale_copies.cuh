// Four scales at a time, which the kernel for many rows loads where the copy engine brings those of x.

struct Four {
  float of[4];
};

DEVICE Four load_shared_four(u32 address) {
  Four found;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(found.of[0]), "=f"(found.of[1]), "=f"(found.of[2]), "=f"(found.of[3])
               : "r"(address)
               : "memory");
  return found;
}

DEVICE Four load_constant_four(const float* pointer) {
  Four found;
  asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(found.of[0]), "=f"(found.of[1]), "=f"(found.of[2]), "=f"(found.of[3])
               : "l"(pointer));
  return found;
}
