"""Loops that a careful TensorFlow user would write, for `make selfcheck FRAMEWORK=tensorflow`."""

import os

from bench.frameworks.keras_jax_tf import on_tensorflow  # first: it sets Keras's backend
from checks.selfcheck import block_of, check_loop

# isort: split
import keras
import tensorflow as tf

MODEL = "mobilenet_v2"  # the same model as in Keras's applications


def checks():
    on_tensorflow.choose_device(None)
    for phase in ("inference", "training"):
        yield check_loop(phase, MODEL, loop(phase))


def loop(phase):
    """Return the block of steps as in TensorFlow's guide to training loops; it ends with a read of the last result."""
    batch_size = int(os.environ.get("BATCH_SIZE", 4))
    model = keras.applications.MobileNetV2(weights=None, classifier_activation=None)
    images = tf.random.normal((batch_size, 224, 224, 3))
    labels = tf.random.uniform((batch_size,), maxval=1000, dtype=tf.int64)
    optimizer = keras.optimizers.SGD(0.01)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def infer():
        return model(images, training=False)

    @tf.function
    def train():
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_weights), model.trainable_weights)
        return loss

    step = train if phase == "training" else infer
    return block_of(step, lambda result: result.numpy(), batch_size)
