"""How bytes reach a vendor: the HTTP client.

`transport` is the seam that providers know; `client` and `blocking` are its two implementations; both write and read
with `http1` and `content_encoding`, and both follow the rules of `connections`.
"""
