"""Files and datasets in, validated JSON out."""
