"""The causes of missed tokens, and their explanation in words."""
