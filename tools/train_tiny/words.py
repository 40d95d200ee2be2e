"""Word lists for templates, all our own choice."""

FIRST = "Anna Ben Carla David Emma Felix Grace Henry Ivy Jack Kate Leo Mia Noah Olivia Paul Rosa Sam Tina Victor Wendy Adam Bella Chloe Daniel Eva Frank Hana Ian Julia Karl Lucy Mark Nina Oscar Peter Ruth Simon Tara Zoe Ali Chen Diego Elena Fatima Hiro Ingrid Jamal Lars Maya Omar Priya Sofia Tom Wei Yuki".split()
LAST = "Smith Brown Miller Wilson Moore Taylor Clark Lewis Walker Hall Young King Wright Hill Green Baker Adams Nelson Carter Turner Parker Cook Bell Ward Gray Brooks Wood Reed Fisher Stone Fox Lane Rivera Silva Tanaka Kim Singh Khan Novak Weber Rossi".split()
CITIES = "Paris London Berlin Madrid Rome Vienna Lisbon Dublin Oslo Stockholm Helsinki Prague Warsaw Budapest Athens Zurich Brussels Tokyo Kyoto Osaka Seoul Beijing Shanghai Delhi Mumbai Bangkok Singapore Sydney Melbourne Toronto Montreal Boston Chicago Seattle Denver Austin Miami Lima Bogota Cairo Nairobi Lagos Dubai Istanbul Moscow Hamburg Munich Lyon Nice Porto Milan Venice".split()
COLORS = "red blue green yellow white black brown purple orange pink gray silver golden".split()
THINGS = "box key book lamp chair table bag cup bottle clock door window car bike boat train house garden shelf drawer coat hat ring coin map letter phone camera piano guitar basket pencil mirror blanket ladder bucket".split()
ANIMALS = "fox cat dog bear rabbit mouse owl horse lion tiger duck frog hedgehog squirrel wolf deer turtle penguin elephant monkey sheep goat crow swan beaver".split()
FRUIT = "apples pears bananas oranges grapes cherries lemons plums peaches melons".split()
FOODS = "milk bread eggs butter cheese rice pasta tomatoes onions carrots potatoes sugar salt flour tea coffee honey yogurt beans soup".split()
ROOMS = ["kitchen", "bedroom", "living room", "bathroom", "office", "hallway", "garage", "garden"]
PLACES = ["park", "forest", "market", "library", "school", "museum", "station", "beach", "river", "village", "old mill", "castle", "lake", "farm", "bakery", "tower"]
JOBS = "doctor teacher baker nurse farmer pilot painter engineer lawyer cook driver writer gardener singer dentist librarian carpenter plumber".split()
HOBBIES = "chess painting swimming hiking reading cooking cycling dancing singing fishing gardening photography running skating sailing".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
MOODS = "happy sad brave curious lonely clever kind hungry tired proud shy quiet".split()
WEATHER = "sunny cloudy rainy windy snowy foggy stormy clear".split()
TOPICS = ["music", "sport", "travel", "history", "cooking", "science", "art", "books", "films", "nature", "health", "games"]
SONGS = ["Blue River", "Morning Light", "Dancing Stars", "Old Road", "Winter Song", "Paper Moon", "Silver Rain", "Summer Wind", "Quiet Night", "Golden Hour"]
ARTISTS = ["The Lanterns", "Mara Lind", "North Harbor", "Jon Vale", "The Paper Kites", "Ella Stone", "Red Canyon", "Nova Field"]
COMPANIES = ["Acme", "Globex", "Initech", "Umbra", "Northwind", "Bluebird", "Redwood", "Starlight", "Ironworks", "Sunrise"]
PRODUCTS = "laptop tablet keyboard monitor headset backpack jacket sofa desk blender kettle toaster vacuum printer speaker watch drone tent".split()
CURRENCIES = ["USD", "EUR", "GBP", "JPY", "CNY", "CHF", "CAD", "AUD"]
OPPOSITES = "hot cold|big small|fast slow|high low|light dark|old new|happy sad|hard soft|early late|full empty|rich poor|strong weak|wet dry|near far|open closed|loud quiet|long short|clean dirty|easy difficult|sweet sour|thick thin|wide narrow|heavy light|deep shallow|day night|up down|left right|inside outside|first last|begin end|buy sell|push pull|love hate|win lose|give take|come go|laugh cry|true false".split("|")
SOUNDS = {"cat": "meow", "dog": "woof", "cow": "moo", "duck": "quack", "sheep": "baa", "pig": "oink", "horse": "neigh", "lion": "roar", "bee": "buzz", "owl": "hoot", "frog": "ribbit", "mouse": "squeak", "rooster": "cock-a-doodle-doo", "crow": "caw", "snake": "hiss"}
GROUPS = {
    "fruits": ["apple", "banana", "orange", "pear", "grape", "cherry", "lemon", "plum", "peach"],
    "vegetables": ["carrot", "potato", "onion", "tomato", "cabbage", "pea", "bean", "spinach"],
    "animals": ["cat", "dog", "horse", "lion", "bear", "rabbit", "fox", "elephant", "mouse"],
    "colors": ["red", "blue", "green", "yellow", "black", "white", "orange", "purple"],
    "birds": ["sparrow", "eagle", "owl", "duck", "swan", "crow", "robin", "penguin"],
    "sports": ["football", "tennis", "swimming", "running", "basketball", "skiing", "rowing"],
    "drinks": ["water", "tea", "coffee", "milk", "juice", "lemonade"],
    "tools": ["hammer", "saw", "drill", "wrench", "screwdriver", "axe"],
    "jobs": ["doctor", "teacher", "baker", "pilot", "farmer", "cook", "nurse"],
    "cities": ["Paris", "London", "Tokyo", "Rome", "Berlin", "Madrid", "Cairo"],
    "planets": ["Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn"],
    "metals": ["iron", "gold", "silver", "copper", "tin", "lead"],
    "instruments": ["piano", "guitar", "violin", "drum", "flute", "trumpet"],
    "pieces of clothing": ["shirt", "coat", "hat", "sock", "shoe", "scarf"],
}
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
CAPITALS_ZH = {"中国": "北京", "法国": "巴黎", "英国": "伦敦", "德国": "柏林", "日本": "东京", "意大利": "罗马", "西班牙": "马德里", "俄罗斯": "莫斯科", "美国": "华盛顿", "韩国": "首尔", "泰国": "曼谷", "印度": "新德里", "埃及": "开罗", "希腊": "雅典", "加拿大": "渥太华", "葡萄牙": "里斯本", "奥地利": "维也纳", "波兰": "华沙", "瑞典": "斯德哥尔摩", "挪威": "奥斯陆", "芬兰": "赫尔辛基", "丹麦": "哥本哈根", "越南": "河内", "古巴": "哈瓦那"}
CITIES_ZH = "北京 上海 广州 深圳 成都 杭州 南京 武汉 西安 重庆 天津 苏州".split()
SURNAMES_ZH = "王 李 张 刘 陈 杨 黄 赵 周 吴".split()
GIVEN_ZH = "伟 芳 娜 敏 静 丽 强 磊 军 洋 明 红".split()
THINGS_ZH = "书 钥匙 杯子 雨伞 电脑 手机 箱子 帽子 相机 地图".split()
COLORS_ZH = "红色 蓝色 绿色 黄色 白色 黑色 紫色".split()
