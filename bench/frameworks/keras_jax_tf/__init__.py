"""TensorFlow and JAX, whose models are Keras's."""
