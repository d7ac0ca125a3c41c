"""The closed book: true facts about some forty countries, as the qa family asks and tells them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Country:
    """Asked: `capital`, `language`, `currency`, `dish`. Only told: `region`, `neighbor`, `flag`."""

    name: str
    capital: str
    language: str
    currency: str
    dish: str
    region: str
    neighbor: str
    flag: str


_TABLE = """
Spain|Madrid|Spanish|euro|paella|southern Europe|Portugal|red and yellow
Italy|Rome|Italian|euro|pizza|southern Europe|Austria|green, white and red
France|Paris|French|euro|ratatouille|western Europe|Belgium|blue, white and red
Germany|Berlin|German|euro|sauerkraut|central Europe|Poland|black, red and gold
Portugal|Lisbon|Portuguese|euro|bacalhau|southern Europe|Spain|green and red
Greece|Athens|Greek|euro|moussaka|southern Europe|Albania|blue and white
Finland|Helsinki|Finnish|euro|kalakukko|northern Europe|Sweden|white and blue
Ireland|Dublin|English|euro|colcannon|western Europe|Britain|green, white and orange
Sweden|Stockholm|Swedish|krona|meatballs|northern Europe|Norway|blue and yellow
Norway|Oslo|Norwegian|krone|lutefisk|northern Europe|Sweden|red, white and blue
Denmark|Copenhagen|Danish|krone|smorrebrod|northern Europe|Germany|red and white
Iceland|Reykjavik|Icelandic|krona|skyr|northern Europe|Greenland|blue, white and red
Poland|Warsaw|Polish|zloty|pierogi|central Europe|Germany|white and red
Hungary|Budapest|Hungarian|forint|goulash|central Europe|Austria|red, white and green
Austria|Vienna|German|euro|schnitzel|central Europe|Hungary|red and white
Switzerland|Bern|German|franc|fondue|central Europe|France|red and white
Romania|Bucharest|Romanian|leu|sarmale|eastern Europe|Hungary|blue, yellow and red
Ukraine|Kyiv|Ukrainian|hryvnia|borscht|eastern Europe|Poland|blue and yellow
Russia|Moscow|Russian|ruble|pelmeni|eastern Europe|Finland|white, blue and red
Turkey|Ankara|Turkish|lira|kebab|western Asia|Greece|red and white
Israel|Jerusalem|Hebrew|shekel|shakshuka|western Asia|Egypt|blue and white
India|Delhi|Hindi|rupee|biryani|southern Asia|Nepal|orange, white and green
Nepal|Kathmandu|Nepali|rupee|momo|southern Asia|India|red and blue
China|Beijing|Mandarin|yuan|dumplings|eastern Asia|Mongolia|red and yellow
Mongolia|Ulaanbaatar|Mongolian|tugrik|buuz|eastern Asia|China|red and blue
Japan|Tokyo|Japanese|yen|sushi|eastern Asia|Korea|red and white
Korea|Seoul|Korean|won|kimchi|eastern Asia|Japan|white, red and blue
Vietnam|Hanoi|Vietnamese|dong|pho|southeastern Asia|Laos|red and yellow
Thailand|Bangkok|Thai|baht|curry|southeastern Asia|Laos|red, white and blue
Indonesia|Jakarta|Indonesian|rupiah|rendang|southeastern Asia|Malaysia|red and white
Australia|Canberra|English|dollar|pavlova|Oceania|Indonesia|blue, white and red
Egypt|Cairo|Arabic|pound|koshari|northern Africa|Libya|red, white and black
Morocco|Rabat|Arabic|dirham|couscous|northern Africa|Algeria|red and green
Kenya|Nairobi|Swahili|shilling|ugali|eastern Africa|Uganda|black, red and green
Canada|Ottawa|English|dollar|poutine|North America|Greenland|red and white
Peru|Lima|Spanish|sol|ceviche|South America|Chile|red and white
Brazil|Brasilia|Portuguese|real|feijoada|South America|Peru|green, yellow and blue
"""
COUNTRIES = tuple(Country(*line.split("|")) for line in _TABLE.strip().splitlines())
