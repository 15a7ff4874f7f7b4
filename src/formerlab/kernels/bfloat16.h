// The type bfloat16, with conversions from and to float that compilers vectorise.
#include <cstdint>
#include <cstring>

struct bfloat16 { uint16_t bits; };

inline float wide(bfloat16 value) {
    const uint32_t bits = uint32_t(value.bits) << 16;
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}

inline uint16_t narrow(float value) {  // rounds to nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0 : rounded;
}

// Conversions for templates over both types
inline float wide(float value) { return value; }
inline void narrow(float value, float& out) { out = value; }
inline void narrow(float value, bfloat16& out) { out.bits = narrow(value); }
