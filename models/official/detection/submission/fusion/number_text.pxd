# cython: language_level=3
"""Decimal numbers in text, without Python objects: read and printed with correct rounding.

`parse_number` reads `[+-]digits[.digits][e[+-]digits]`, to the double nearest to what is written.
A token of at most 18 digits without an exponent, whose digits make an integer up to 2**53 (any of
up to 15 significant digits), is one division of two exact doubles, which IEEE 754 rounds correctly;
every other token goes through strtod. `0.ddddd` with a blank behind it, what submissions consist
of, is read eight bytes at once. `print_number` gives what printf("%.Nf") gives, ties to even of the
exact binary value included.
"""

cimport cython
from libc.math cimport fma, signbit
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport strtod
from libc.string cimport memcpy

cdef extern from *:
    """
    #include <string.h>
    static const double TPUDET_POWERS[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10,
                                           1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18};
    static const char TPUDET_PAIRS[] =
        "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445"
        "46474849505152535455565758596061626364656667686970717273747576777879808182838485868788899091"
        "9293949596979899";

    /* The digits of `0.ddddd ` as an integer, -1 for any other eight bytes. */
    static inline int tpudet_five_decimals(const unsigned char *text) {
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        unsigned long long word, digits;
        memcpy(&word, text, 8);
        digits = word >> 16 & 0xFFFFFFFFFFULL;
        if ((word & 0xFF0000000000FFFFULL) != 0x2000000000002E30ULL
            || (digits & 0xF0F0F0F0F0ULL) != 0x3030303030ULL
            || ((digits + 0x0606060606ULL) & 0xF0F0F0F0F0ULL) != 0x3030303030ULL)
            return -1;
        digits = (digits & 0x0F0F0F0F0FULL) << 24;  /* three zeros, five digits, one per byte */
        digits = digits * 10 + (digits >> 8);       /* pairs in every second byte */
        return (int)(((digits & 0x000000FF000000FFULL) * 0x000F424000000064ULL
                      + (digits >> 16 & 0x000000FF000000FFULL) * 0x0000271000000001ULL) >> 32);
    #else
        return -1;
    #endif
    }
    """
    int five_decimals "tpudet_five_decimals" (const unsigned char* text) noexcept nogil
    const double POWERS "TPUDET_POWERS" [19]
    const char PAIRS "TPUDET_PAIRS" [201]

cdef enum:
    LONGEST_NUMBER = 63  # characters of a token
    LONGEST_PRINTED = 24  # a sign, 7 digits before the point and up to 9 behind it
    LARGEST = 1000000  # magnitude that is read; print_number has no room beyond it
    MAX_DECIMALS = 9


cdef inline bint is_blank(unsigned char character) noexcept nogil:
    return character == 32 or character == 9


cdef inline bint is_digit(unsigned char character) noexcept nogil:
    return <unsigned char>(character - 48) < 10


cdef inline const unsigned char* token_end(
    const unsigned char* text, const unsigned char* stop
) noexcept nogil:
    while text < stop and not is_blank(text[0]):
        text += 1
    return text


@cython.cdivision(True)
cdef inline bint parse_number(
    const unsigned char** cursor, const unsigned char* stop, double* value, int* num_usual
) noexcept nogil:
    """Reads the token at the cursor and moves behind it; False (unmoved): it is no such number.

    `num_usual` counts those that are `0.ddddd` with a blank (32) behind it.
    """
    cdef const unsigned char* text = cursor[0]
    cdef const unsigned char* first
    cdef const unsigned char* point
    cdef uint64_t digits = 0
    cdef Py_ssize_t num_digits, num_decimals = 0
    cdef bint negative
    cdef int fraction
    if stop - text >= 8:
        fraction = five_decimals(text)
        if fraction >= 0:
            value[0] = <double>fraction / 1e5
            cursor[0] = text + 7
            num_usual[0] += 1
            return True
    negative = text < stop and text[0] == 45
    text += negative
    first = text
    while text < stop and is_digit(text[0]):
        digits = digits * 10 + (text[0] - 48)
        text += 1
    num_digits = text - first
    if text < stop and text[0] == 46:
        text += 1
        point = text
        while text < stop and is_digit(text[0]):
            digits = digits * 10 + (text[0] - 48)
            text += 1
        num_decimals = text - point
        num_digits += num_decimals
    if (
        (text < stop and not is_blank(text[0]))
        or not 0 < num_digits <= 18
        or digits > <uint64_t>9007199254740992
    ):
        return parse_any_number(cursor, stop, value)
    value[0] = <double>digits / POWERS[num_decimals]
    if negative:
        value[0] = -value[0]
    cursor[0] = text
    return True


cdef inline bint parse_any_number(
    const unsigned char** cursor, const unsigned char* stop, double* value
) noexcept nogil:
    cdef char copied[LONGEST_NUMBER + 1]
    cdef const unsigned char* first = cursor[0]
    cdef const unsigned char* end = token_end(first, stop)
    cdef const unsigned char* text = first
    cdef const unsigned char* part
    cdef Py_ssize_t num_digits, i
    if end - first > LONGEST_NUMBER:
        return False
    if text < end and (text[0] == 43 or text[0] == 45):
        text += 1
    part = text
    while text < end and is_digit(text[0]):
        text += 1
    num_digits = text - part
    if text < end and text[0] == 46:
        text += 1
        part = text
        while text < end and is_digit(text[0]):
            text += 1
        num_digits += text - part
    if num_digits == 0:
        return False
    if text < end and (text[0] == 69 or text[0] == 101):
        text += 1
        if text < end and (text[0] == 43 or text[0] == 45):
            text += 1
        part = text
        while text < end and is_digit(text[0]):
            text += 1
        if text == part:
            return False
    if text != end:
        return False
    for i in range(end - first):
        copied[i] = <char>first[i]
    copied[end - first] = 0
    value[0] = strtod(copied, NULL)
    cursor[0] = end
    return True


@cython.cdivision(True)
cdef inline unsigned char* print_number(
    unsigned char* out, double value, int decimals
) noexcept nogil:
    """Prints at `out` (LONGEST_PRINTED free bytes), |value| <= LARGEST; returns what is behind it.

    value * 10**decimals in doubles decides the rounding except on an apparent tie: a half is a
    multiple of the product's unit in the last place, and the product is wrong by at most half of
    one. On a tie fma says on which side the exact product lies.
    """
    cdef double scaled, rest, error
    cdef int64_t number, whole, scale
    cdef int place, pair
    cdef uint32_t whole_of_five, rest_of_five
    cdef unsigned char* end
    if value < 0 or (value == 0 and signbit(value)):
        out[0] = 45
        out += 1
        value = -value
    scaled = value * POWERS[decimals]
    number = <int64_t>scaled
    rest = scaled - <double>number
    if rest > 0.5:
        number += 1
    elif rest == 0.5:
        error = fma(value, POWERS[decimals], -scaled)
        if error > 0 or (error == 0 and number & 1):
            number += 1
    if decimals == 5 and number < 1000000:
        whole_of_five = <uint32_t>number // 100000
        rest_of_five = <uint32_t>number - whole_of_five * 100000
        out[0] = <unsigned char>(48 + whole_of_five)
        out[1] = 46
        memcpy(out + 2, &PAIRS[2 * (rest_of_five // 1000)], 2)
        memcpy(out + 4, &PAIRS[2 * (rest_of_five // 10 % 100)], 2)
        out[6] = <unsigned char>(48 + rest_of_five % 10)
        return out + 7
    scale = <int64_t>POWERS[decimals]
    whole = number // scale
    number -= whole * scale
    if whole < 10:
        out[0] = 48 + <unsigned char>whole
        end = out + 1
    else:
        place = 2
        while whole >= <int64_t>POWERS[place]:
            place += 1
        end = out + place
        while place:
            place -= 1
            out[place] = 48 + <unsigned char>(whole % 10)
            whole //= 10
    if decimals == 0:
        return end
    end[0] = 46
    end += 1
    place = decimals
    while place >= 2:
        place -= 2
        pair = <int>(number % 100)
        number //= 100
        end[place] = PAIRS[2 * pair]
        end[place + 1] = PAIRS[2 * pair + 1]
    if place:
        end[0] = 48 + <unsigned char>number
    return end + decimals
