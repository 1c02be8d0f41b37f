"""`Bank`: reference queries fit for use, kept from day to day.

arrivals    queries as they come: in parts, each checked
times       when they came, and how fast they are forgotten
bank        `Bank`: one row per intent, its file
references  a bank, or rows that are none, opened for a method
"""

from nnnorm.bank.bank import Bank, describe_times
from nnnorm.bank.references import (
    is_bank,
    open_gallery_references,
    open_references,
    use_references,
)
