//! Words that cases are made of. Plain ones, so that no tokenizer has trouble with them.

pub const COLOURS: [&str; 20] = [
    "red", "green", "blue", "yellow", "purple", "orange", "silver", "golden", "black", "white",
    "brown", "grey", "pink", "crimson", "scarlet", "violet", "amber", "ivory", "copper", "emerald",
];

pub const THINGS: [&str; 40] = [
    "lantern", "window", "basket", "hammer", "mirror", "pencil", "candle", "bottle", "button",
    "ladder", "carpet", "curtain", "kettle", "saddle", "anchor", "barrel", "blanket", "bridge",
    "bucket", "cabinet", "camera", "chimney", "clock", "compass", "drum", "engine", "feather",
    "flute", "garden", "glove", "guitar", "helmet", "jacket", "jar", "knife", "letter", "needle",
    "pillow", "spoon", "wagon",
];

pub const ANIMALS: [&str; 32] = [
    "heron", "badger", "falcon", "otter", "rabbit", "tiger", "camel", "donkey", "eagle", "fox",
    "goat", "hawk", "lion", "monkey", "owl", "panda", "pigeon", "raven", "salmon", "seal", "shark",
    "sheep", "snake", "spider", "swan", "turtle", "whale", "wolf", "zebra", "beaver", "crow",
    "deer",
];

pub const ADJECTIVES: [&str; 20] = [
    "small", "old", "quiet", "bright", "heavy", "broken", "empty", "gentle", "happy", "hidden",
    "hollow", "narrow", "polite", "rusty", "sleepy", "sharp", "smooth", "tall", "tiny", "wooden",
];

/// With commas between them.
pub const TOPICS: &str = "photosynthesis, the water cycle, volcanoes, the moon, electricity, \
    magnets, rainbows, the human heart, sleep, memory, bread, coffee, tea, chocolate, bicycles, \
    trains, bridges, clocks, maps, libraries, music, painting, photography, poetry, chess, \
    football, swimming, gardening, cooking, camping, bees, whales, birds, dogs, forests, \
    deserts, rivers, glaciers, earthquakes, the weather, money, markets, voting, history, \
    language, writing, computers, the internet, encryption, robots";
