"""Random schemas × broken answers through the real proxy, judged by a validator that slipform does not use."""
