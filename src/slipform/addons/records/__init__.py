"""Extract every record of a long document, or report what is missing."""
