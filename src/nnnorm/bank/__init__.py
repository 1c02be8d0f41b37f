"""`Bank`: reference queries fit for use, kept from day to day."""

from nnnorm.bank.bank import Bank, describe_times, open_references, use_references
