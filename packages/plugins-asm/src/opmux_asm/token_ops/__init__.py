"""The ops of a token's heads: rotary embedding and the cache write."""
