"""Everyday requests on everyday topics: forms times topics, both written for this project.

Comes in: nothing. Goes out: distinct prompts, drawn by a generator of their own.
"""

import random

from launch.drawn import distinct, words

_TOPICS = words(
    "gravity,photosynthesis,the water cycle,black holes,earthquakes,volcanoes,the moon,vaccines,antibiotics,sleep,memory,"
    "the human heart,the brain,muscles,healthy eating,running,swimming,yoga,chess,football,basketball,tennis,the guitar,"
    "the piano,jazz,classical music,painting,photography,sculpture,poetry,novels,theater,movies,gardening,cooking,baking "
    "bread,coffee,tea,chocolate,cheese,honey,bees,birds,whales,elephants,dogs,cats,horses,dinosaurs,rainforests,deserts,"
    "oceans,rivers,mountains,glaciers,climate change,solar energy,wind power,nuclear energy,electric cars,bicycles,trains,"
    "airplanes,rockets,satellites,telescopes,microscopes,computers,programming,Python,databases,the internet,email,"
    "passwords,encryption,machine learning,neural networks,robots,smartphones,video games,social media,advertising,"
    "marketing,money,budgets,saving,investing,taxes,insurance,inflation,trade,small businesses,job interviews,résumés,"
    "teamwork,leadership,negotiation,public speaking,time management,procrastination,habits,stress,happiness,friendship,"
    "family,parenting,school,homework,exams,reading,writing essays,learning a language,mathematics,fractions,algebra,"
    "geometry,probability,statistics,prime numbers,chemistry,acids and bases,atoms,molecules,electricity,magnets,light,"
    "sound,heat,evolution,genetics,cells,viruses,bacteria,the Roman Empire,ancient Egypt,ancient Greece,the Middle Ages,"
    "the Renaissance,the Industrial Revolution,democracy,elections,laws,human rights,the United Nations,travel,hotels,"
    "camping,hiking,beaches,cities,public transport,recycling,plastic,clean water,houses,furniture,interior design,fashion",
    ",",
)
_FORMS = (
    "Explain {topic} to a ten-year-old.",
    "Explain {topic} in simple terms.",
    "What are the three most important things to know about {topic}?",
    "Write a short poem about {topic}.",
    "Write a short story about {topic}.",
    "Write a blog post about {topic}.",
    "Write an email to a colleague about {topic}.",
    "Give me five tips about {topic}.",
    "List ten facts about {topic}.",
    "What are the advantages and disadvantages of {topic}?",
    "How has {topic} changed over the last hundred years?",
    "Write a dialogue between a teacher and a student about {topic}.",
    "Imagine you are an expert on {topic}. Introduce yourself and answer the most common question.",
    "Summarize what is known about {topic} in one paragraph.",
    "Make a lesson plan about {topic}.",
    "Write a speech about {topic} for a school event.",
    "What questions should a beginner ask about {topic}?",
    "Compare {topic} and {other}.",
    "Write a product description for a course about {topic}.",
    "Describe a day in the life of someone who works with {topic}.",
    "Why does {topic} matter? Give reasons with examples.",
    "Write a quiz with four questions and answers about {topic}.",
    "Outline an essay about {topic}.",
    "Pretend you are a detective and explain {topic} as if it were a case.",
)


def requests(count: int, seed: int) -> list[str]:
    """``count`` distinct requests."""
    return distinct(count, f"{seed} requests", _request)


def _request(drawn: random.Random) -> str:
    topic, other = drawn.sample(_TOPICS, 2)
    return drawn.choice(_FORMS).format(topic=topic, other=other)
