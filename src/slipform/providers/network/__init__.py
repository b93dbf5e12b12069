"""Send HTTP/1.1 requests to vendors.

`transport` is the interface that providers use; `client` and `blocking` are its two implementations; both write and
read with `http1` and `content_encoding`, and both follow the rules of `connections`.
"""
