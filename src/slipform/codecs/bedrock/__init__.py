"""Bedrock Converse."""

from slipform.codecs.bedrock.codec import BedrockCodec

__all__ = ["BedrockCodec"]
