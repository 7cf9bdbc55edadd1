"""Numbers in short: the rounding of every text in which a value stands, of the log of a training as
of a view. ``numbers.js`` of the report's page says the same in JavaScript.
"""

import math

NO_VALUE = "-"


def number_text(value: float) -> str:
    """Return a value with three significant digits, as a whole number with commas where it is
    large; a dash for NaN.

    >>> (number_text(0.012345), number_text(-3.2e-5), number_text(3842.1), number_text(1234567.0),
    ...     number_text(math.nan))
    ('0.0123', '-3.2e-05', '3,842', '1.23e+06', '-')
    """
    if math.isnan(value):
        return NO_VALUE
    return f"{value:,.0f}" if 999.5 <= abs(value) < 999_999.5 else f"{value:.3g}"


def short_count(count: float) -> str:
    """Return a number of parameters or tokens in a few characters.

    >>> [short_count(count) for count in (0, 512, 4096, 44_670_976, 999_999_999, 1.4e9, 3e11)]
    ['0', '512', '4.1k', '45M', '1B', '1.4B', '300B']
    """
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        # what would round to a thousand of the next smaller unit is one of this
        if count >= 0.9995 * size:
            scaled = count / size
            return (
                f"{scaled:.0f}{letter}"
                if scaled >= 9.95
                else f"{scaled:.1f}".removesuffix(".0") + letter
            )
    return f"{count:.0f}"


def short_value(value: float) -> str:
    """Return a value in four characters if possible, and one more for a sign.

    >>> (short_value(0.0532), short_value(12.34), short_value(1234.0), short_value(123456.0),
    ...     short_value(math.nan))
    ('0.05', '12.3', '1234', '1e+05', '   -')
    >>> (short_value(-12.34), short_value(0.0031), short_value(0.0))
    ('-12.3', '3e-3', '0.00')
    """
    if math.isnan(value):
        return f"{NO_VALUE:>4}"
    size = abs(value)
    if size >= 9999.5:
        return f"{value:.0e}"
    # else a share of a thousandth would be shown as none
    if 0 < size < 0.005:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:4.{2 if size < 9.995 else 1 if size < 99.95 else 0}f}"
